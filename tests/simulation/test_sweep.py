"""The table of broken rules in the docs has the current rules and meets the sweep's limits."""

from statistics import median

from tests.simulation.mutation import CEILING, MEDIAN
from tests.simulation.mutations import MUTATIONS
from tests.simulation.sweep import BEGIN, END, PAGE, world_of


def test_table_in_the_docs_has_all_current_rules() -> None:
    text = PAGE.read_text().split(BEGIN, 1)[1].split(END, 1)[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.strip().splitlines()[2:]]
    assert [(rule, world) for rule, world, _ in rows] == [(mutation.rule, world_of(mutation)) for mutation in MUTATIONS]
    counts = [int(count) for _, _, count in rows]
    assert max(counts) <= CEILING
    assert median(counts) <= MEDIAN
