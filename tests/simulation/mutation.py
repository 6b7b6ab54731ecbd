"""A rule of the real code that is broken on purpose, and the search for a history that shows it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from tests.simulation.run import run
from tests.simulation.world import Chances
from tests.simulation.worlds import Worlds

CEILING = 50
"""Histories within which each broken rule is found."""
MEDIAN = 10
"""The same for half of the rules."""

Change = AbstractContextManager[object]


def changed(owner: object, name: str, new: object) -> Change:
    """An attribute of a class or module, replaced."""
    return patch.object(owner, name, new)


def wrapped(owner: object, name: str, new: Callable[..., object]) -> Change:
    """A function, replaced by one that gets the real one before its arguments."""
    real = getattr(owner, name)
    return patch.object(owner, name, lambda *arguments, **named: new(real, *arguments, **named))


@dataclass(frozen=True, slots=True)
class Search:
    histories: int
    is_found: bool
    crashes: int
    """Histories in which a service crashed by the broken code: they show nothing."""


@dataclass(frozen=True, slots=True)
class Mutation:
    rule: str
    change: Change | tuple[Change, ...]
    """What breaks it: a decision of the services, replaced by a forbidden one."""
    chances: Chances | None = None
    """The world in which it shows; all of them in turn when absent."""
    worlds: Worlds = Worlds.PLAIN

    @contextmanager
    def breaking(self) -> Iterator[None]:
        with ExitStack() as stack:
            for change in self.change if isinstance(self.change, tuple) else (self.change,):
                stack.enter_context(change)
            yield

    def search(self, first: int = 0, most: int = CEILING) -> Search:
        """Run histories, at most ``most``, until one finds the broken rule, starting at a seed."""
        crashes = 0
        for number, seed in enumerate(range(first, first + most), 1):
            is_caught = self.is_caught(seed)
            if is_caught:
                return Search(number, is_found=True, crashes=crashes)
            crashes += is_caught is None
        return Search(most, is_found=False, crashes=crashes)

    def is_caught(self, seed: int) -> bool | None:
        """Whether the invariants or the final check reject one history; None where a service crashed by the broken
        code."""
        with self.breaking():
            try:
                verdict = run(seed, self.worlds, self.chances)
            except Exception:  # noqa: BLE001 - any error of broken code
                return None
        return None if verdict.crashed else bool(verdict.problems)


def hostile(rule: str, change: Change | tuple[Change, ...], *surroundings: str) -> Mutation:
    """A rule that shows in hostile surroundings."""
    return Mutation(rule, change, Chances(surroundings=surroundings), Worlds.HOSTILE)
