"""``python -m tests.simulation.sweep``: break each rule on purpose, and count the histories until one shows it.

It exits with 1 where a rule is not found within `CEILING` histories, or half of them not within `MEDIAN`: then the
simulation has to be improved, by faults where they hurt and the world in which a rule matters, not by a seed. The
counts of `RARE` rules are printed only.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from tests.simulation import editing, world
from tests.simulation.mutation import CEILING, MEDIAN, Mutation
from tests.simulation.mutations import MUTATIONS, RARE
from tests.simulation.world import Chances

PAGE = Path(__file__).parents[2] / "docs/internals/guarantees.md"
_ROW = re.compile(r"^\| (.+) \| .+ \| (\d+) \|$", re.MULTILINE)
BEGIN, END = "<!-- by `python -m tests.simulation.sweep --write` -->", "<!-- end of the table -->"
FIRST = 5_000
"""The first seed of the page's table."""


def world_of(mutation: Mutation) -> str:
    """The world in which a rule matters: its kind, and its profile where it is not the seed's."""
    return mutation.worlds if mutation.chances is None else f"{mutation.worlds}, {_profile_name(mutation.chances)}"


def _profile_name(chances: Chances) -> str:
    named = {**vars(world), **vars(editing)}.items()
    own = " and ".join(sorted(chances.surroundings)) if chances.surroundings else "its own profile"
    return next((name for name, value in named if value is chances), own).lower().replace("_", " ")


def table_of(counts: Mapping[str, int]) -> str:
    """A row for each rule: its world, and the histories until it is found."""
    by_rule = {mutation.rule: mutation for mutation in MUTATIONS}
    rows = [f"| {rule} | {world_of(by_rule[rule])} | {count} |" for rule, count in counts.items()]
    return "\n".join(["| rule that is broken | world | histories |", "| --- | --- | --- |", *rows])


def counts_of_page() -> dict[str, int]:
    """The histories until each rule is found, by the page's table."""
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    return {rule: int(count) for rule, count in _ROW.findall(table)}


def write_table(counts: Mapping[str, int]) -> None:
    """Replace the table of the page, or the rows of these rules in it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    known, after = counts_of_page() | dict(counts), rest.partition(END)[2]
    rows = {mutation.rule: known[mutation.rule] for mutation in MUTATIONS if mutation.rule in known}
    PAGE.write_text(f"{before}{BEGIN}\n{table_of(rows)}\n{END}{after}")


def complaints(counts: Mapping[str, int]) -> list[str]:
    """Why the simulation finds too little; empty where it finds enough."""
    late = [f"{rule}: not within {CEILING} histories" for rule, count in counts.items() if count > CEILING]
    middle = median(counts.values())
    return late if middle <= MEDIAN else [*late, f"half of the rules take more than {middle:g} histories"]


def search(mutations: Iterable[Mutation], first: int) -> dict[str, int]:
    """The histories until each rule is found, one more than `CEILING` where it is not."""
    histories: dict[str, int] = {}
    for mutation in mutations:
        outcome = mutation.search(first)
        histories[mutation.rule] = outcome.histories if outcome.is_found else CEILING + 1
        outcome_text = f"{outcome.histories:>3}" if outcome.is_found else "not found"
        crashes = f" ({outcome.crashes} histories crashed)" if outcome.crashes else ""
        print(f"{mutation.rule:60} {world_of(mutation):24} {outcome_text}{crashes}", flush=True)  # noqa: T201 - it takes minutes
    return histories


def main(
    rules: Annotated[list[str] | None, typer.Argument(help="Only these rules.")] = None,
    first: Annotated[int, typer.Option(help="The first seed.")] = FIRST,
    write: Annotated[bool, typer.Option("--write", help="Write the table into docs/internals/guarantees.md.")] = False,  # noqa: FBT002
) -> None:
    """Print how many histories it takes to find each broken rule; exit 1 where that is too many."""
    if unknown := set(rules or ()) - {mutation.rule for mutation in MUTATIONS}:
        msg = f"no such rule: {', '.join(sorted(unknown))}"
        raise typer.BadParameter(msg)
    counts = search([mutation for mutation in MUTATIONS if not rules or mutation.rule in rules], first)
    if not rules:
        search(RARE, first)
    wrong = complaints(counts)
    if write:
        write_table(counts)
    typer.echo("\n".join(wrong) or f"half of the rules within {median(counts.values()):g} histories")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
