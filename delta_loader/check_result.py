"""The result of one check, and how results are shown.

Rules:

1. A check is ``ok``, a ``warning`` (it loads, and something will go wrong some day), or an ``error`` (it cannot load).
   A warning or error has a remedy.
2. An error of a stream concerns that stream alone, and keeps no loader from starting: files staged before may still be
   compatible, and each pass judges by the files. An error without a stream concerns all of them.
3. An error that may resolve by itself, because a dependency is unavailable, is marked as such: a running loader waits
   for it, and only errors that a person has to fix keep it from starting.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from common.errors import ExitCode
from common.json_value import Json


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    level: Level
    message: str
    remedy: str = ""
    app_id: str | None = None
    """The stream that it concerns; None for all."""
    away: bool = False
    """Whether it is an error that may resolve by itself (rule 3)."""
    code: ExitCode = ExitCode.HELD
    """The exit code of a command for an error that does not resolve by itself."""

    @property
    def exit_code(self) -> ExitCode:
        if self.level is not Level.ERROR:
            return ExitCode.DONE
        return ExitCode.FAILED if self.away else self.code


@dataclass(frozen=True, slots=True)
class StreamChecks:
    """Makes the checks of one stream, whose messages begin with its app id."""

    app_id: str

    def ok(self, name: str, text: str) -> Check:
        return Check(name, Level.OK, f"{self.app_id}: {text}", "", self.app_id)

    def warning(self, name: str, text: str, remedy: str) -> Check:
        return Check(name, Level.WARNING, f"{self.app_id}: {text}", remedy, self.app_id)

    def error(self, name: str, text: str, remedy: str, *, away: bool = False, code: ExitCode = ExitCode.HELD) -> Check:
        return Check(name, Level.ERROR, f"{self.app_id}: {text}", remedy, self.app_id, away, code)


def fatal(checks: Iterable[Check]) -> tuple[Check, ...]:
    """The errors of all streams, which keep a loader from starting until an operator fixes them (rule 2)."""
    return tuple(check for check in checks if check.level is Level.ERROR and not check.away and check.app_id is None)


def exit_code(checks: Iterable[Check]) -> ExitCode:
    """Exit code of `delta-loader check`: 1 dependency unavailable, 2 bad setting or right, 3 incompatible table."""
    return ExitCode.most_significant(check.exit_code for check in checks)


def checks_as_text(checks: Sequence[Check]) -> str:
    lines: list[str] = []
    for check in checks:
        lines.append(f"{check.name:<8} {check.level.value}: {check.message}")
        if check.remedy:
            lines.append(f"         → {check.remedy}")
    ready = "ready to load, with warnings" if any(check.level is Level.WARNING for check in checks) else "all well"
    errors = [check for check in checks if check.level is Level.ERROR]
    not_ready = (
        "not ready to load while a service is unavailable"
        if all(check.away for check in errors)
        else "not ready to load"
    )
    lines.append(not_ready if errors else ready)
    return "\n".join(lines)


def checks_as_json(checks: Sequence[Check]) -> Json:
    """The checks as JSON. Keys are only ever added."""
    return {
        "fit": all(check.level is not Level.ERROR for check in checks),
        "checks": [
            {
                "name": check.name,
                "level": check.level.value,
                "away": check.away,
                "app_id": check.app_id,
                "message": check.message,
                "remedy": check.remedy,
            }
            for check in checks
        ],
    }
