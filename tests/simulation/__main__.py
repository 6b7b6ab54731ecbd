"""``python -m tests.simulation``: run many histories, or replay one and print its trace."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Annotated

import typer

from tests.simulation.run import run
from tests.simulation.world import Fault
from tests.simulation.worlds import Worlds, default_kind

_TOLD_EVERY = 500


def main(
    seeds: Annotated[int, typer.Option(help="How many histories.")] = 200,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Replay this one and print its trace.")] = None,
    worlds: Annotated[Worlds | None, typer.Option(help="Worlds of one kind; by default all, by the seed.")] = None,
) -> None:
    """Run histories; exit 1 at the first one that fails the final check."""
    faults: Counter[Fault] = Counter()
    records, began = 0, time.monotonic()
    chosen = range(first, first + seeds) if seed is None else [seed]
    for done, number in enumerate(chosen):
        if done and done % _TOLD_EVERY == 0:
            typer.echo(f"{done} histories, every record once so far", err=True)
        kind = worlds or default_kind(number)
        verdict = run(number, kind)
        faults += verdict.faults
        records += verdict.records
        if verdict.problems or seed is not None:
            typer.echo("\n".join(verdict.trace))
        if verdict.problems:
            typer.echo("\n  ".join([f"seed {number} fails:", *verdict.problems[:10]]))
            typer.echo(f"replay it with: python -m tests.simulation --worlds {kind} --seed {number}")
            sys.exit(1)
    typer.echo(
        f"{len(chosen)} histories, {records} records, {time.monotonic() - began:.0f} s; every record once. Faults:"
    )
    for fault, count in sorted(faults.items()):
        typer.echo(f"  {count:>8}  {fault}")


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(main)
app()
