"""``python -m model``: check every world, break every rule, and print how many states were visited."""

import sys
import time
from typing import Annotated

import typer

from model.checker import BROKEN_RULES, WORLDS, Properties, check


def main(
    *,
    broken: Annotated[bool, typer.Option(help="Only break the rules.")] = False,
) -> None:
    """Exit 1 when a property is violated, or a broken rule is not found."""
    wrong = 0
    for world, properties in () if broken else WORLDS:
        began_s = time.monotonic()
        result = check(world, properties)
        kind = "safety and progress" if properties is Properties.SAFETY_AND_PROGRESS else "safety"
        verdict = "holds" if result.violation is None else f"{result.violation} IS VIOLATED"
        states = f"{result.distinct:>9,} states ({result.generated:,} steps)"
        typer.echo(f"{states}, {time.monotonic() - began_s:.0f} s: {kind} {verdict}: {world}")
        if result.violation is not None:
            wrong += 1
            typer.echo(result.report)
    typer.echo("Each rule broken on purpose:")
    for rule in BROKEN_RULES:
        result = check(rule.world, rule.properties, rule.rule)
        wrong += result.violation is None
        found = "NOT FOUND" if result.violation is None else f"{result.violation} is violated"
        typer.echo(f"  {rule.rule:45} {found} ({result.distinct:,} states)")
    sys.exit(int(wrong > 0))


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(main)
app()
