"""Changes critical modules in one place at a time and says which changes no fast test sees: ``make mutants``.

Rules:

1. One mutant is one small change of a function's syntax tree (`tests.mutants.changes`).
2. Each module has one process that collects its tests once. Each mutant has a forked process in which the changed
   function's code is put into the functions that are already loaded, and the tests that run the changed statement run
   up to the first failure: those that killed other mutants, then the quickest (`tests.mutants.sweep`). The project's
   files stay as they are.
3. A mutant has much more CPU time than its tests need without it, so one that never ends is killed, too. So is one that
   waits, using none, for a minute. A machine that does other work makes a mutant slow, but never kills it.
4. A mutant that is the same program is named in `tests.mutants.equivalent` with a reason, and is not run. An entry
   there that fits no mutant ends the run.
"""

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.choices import require_known
from tests.mutants.changes import Mutant, mutants
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.sweep import SweepError, survivors_of
from tests.mutants.table import TESTS

ENOUGH = 0.95
"""The share of all mutants that has to be killed."""
ROOT = Path(__file__).parents[2]


def _drawn(modules: list[str], sample: int | None, seed: int) -> dict[str, list[Mutant]]:
    """By module, the mutants to try. Raises SweepError for an entry of the list that fits no mutant."""
    tried: list[tuple[str, Mutant]] = []
    for module in modules:
        all_mutants = list(mutants((ROOT / f"{module.replace('.', '/')}.py").read_text()))
        named = EQUIVALENT.get(module, {})
        if unknown := named.keys() - {mutant.what for mutant in all_mutants}:
            msg = f"tests/mutants/equivalent.py names what is no mutant of {module}: {min(unknown)}"
            raise SweepError(msg)
        tried += [(module, mutant) for mutant in all_mutants if mutant.what not in named]
    if sample is not None:
        tried = random.Random(seed).sample(tried, min(sample, len(tried)))  # noqa: S311 - no secret
    return {module: [mutant for other, mutant in tried if other == module] for module in modules}


def main(
    modules: Annotated[list[str] | None, typer.Argument(help="Of the table; all where none is named.")] = None,
    *,
    sample: Annotated[int | None, typer.Option(min=1, help="Try that many mutants, drawn by the seed.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sample; a new one each time where none is given.")] = None,
) -> None:
    """Exit 1 when too many mutants survive, or the tests fail without any."""
    require_known(modules, TESTS)
    os.chdir(ROOT)
    os.environ["PROPERTIES"] = "mutants"
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    modules = modules or list(TESTS)
    if sample is not None:
        typer.echo(f"{sample} mutants, seed {seed}")
    tried = killed = 0
    try:
        drawn = _drawn(modules, sample, seed)
        for module, chosen in drawn.items():
            if not chosen:
                continue
            began_s = time.monotonic()
            survivors = survivors_of(module, chosen, TESTS[module])
            dead = len(chosen) - len(survivors)
            took = f"{time.monotonic() - began_s:.0f} s"
            typer.echo(f"{module}: {dead} of {len(chosen)} mutants killed ({dead / len(chosen):.1%}), {took}")
            tried, killed = tried + len(chosen), killed + dead
    except SweepError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    for module in drawn:
        for reason, count in Counter(EQUIVALENT.get(module, {}).values()).items():
            typer.echo(f"not tried: {module}: {count} equivalent: {reason}")
    typer.echo(f"{killed} of {tried} mutants killed ({killed / tried:.1%})")
    if killed < ENOUGH * tried:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
