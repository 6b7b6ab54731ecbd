"""Problems, and figures of the process, that both services report in the same words."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from common.pages.model import Problem, ProblemLevel
from common.spans import TopicPartition
from common.stage.paused import Pause


class Waiting(Protocol):
    """Why a Kafka partition is held."""

    @property
    def reason(self) -> str: ...

    @property
    def problem(self) -> str: ...

    @property
    def remedy(self) -> str: ...


Reason = TypeVar("Reason", bound=Waiting)


def held_problems(held: Mapping[TopicPartition, Reason], words: str = "is held") -> Iterator[Problem]:
    """The held Kafka partitions: one problem for each reason, described for the first of them."""
    by_reason: dict[str, list[tuple[TopicPartition, Reason]]] = {}
    for partition, why in sorted(held.items()):
        by_reason.setdefault(why.reason, []).append((partition, why))
    for reason, waiting in by_reason.items():
        partition, why = waiting[0]
        title = f"{partition} {words} ({reason.replace('_', ' ')})"
        yield Problem(ProblemLevel.ERROR, title, why.problem, why.remedy, also=len(waiting) - 1)


def paused_problem(what: str) -> Problem:
    """The service was paused; ``what`` does not happen meanwhile, as "Loading is paused"."""
    text = f"{what} until it is resumed, or this process is restarted."
    remedy = 'resume with `curl -X POST -H "Authorization: Bearer $HTTP_TOKEN" http://…/resume`'
    return Problem(ProblemLevel.WARNING, "Paused by request", text, remedy)


def stream_pauses(pauses: Mapping[str, Pause]) -> Iterator[Problem]:
    for app_id, pause in sorted(pauses.items()):
        yield Problem(
            ProblemLevel.WARNING, f"{app_id} is paused", f"{pause.text[0].upper()}{pause.text[1:]}.", pause.remedy
        )


_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Memory in use; None where it cannot be determined."""
    try:
        return int(_STATM.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
