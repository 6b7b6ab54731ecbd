"""Columns that are looked up in the background: what is known stays in use, and what fails is tried again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import structlog

from common.errors import BrokerError, ConfigError, KafkaDeltaExpressError, RegistryError
from common.settings import Stream
from stage_writer.columns.finding import DiscoveredColumns
from stage_writer.columns.following import LOOK_AT_TABLES_S, ColumnsWait, CoveredSchemas, FollowedColumns
from stage_writer.convert_by_table import converter_of
from stage_writer.decode.envelopes.framing import SchemaKey
from stage_writer.ports import Converter
from tests.builders import required, settings_of
from tests.fakes.group import HandClock


def stream_of(columns: str) -> Stream:
    more = {"framing": "confluent"} if columns == "from_registry" else {}
    return settings_of({"columns": columns, **more}, schema_registry={"url": "http://127.0.0.1:1"}).streams[0]


ONE, TWO = stream_of("id BIGINT"), stream_of("id BIGINT, n BIGINT")
Outcome = DiscoveredColumns | Exception


@dataclass
class Finder:
    """Its outcomes are set by the test."""

    stream: Stream
    outcomes: list[Outcome] = field(default_factory=list)
    asked: list[frozenset[SchemaKey]] = field(default_factory=list)

    def find(self, ids: frozenset[SchemaKey]) -> DiscoveredColumns:
        self.asked.append(ids)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def known(self) -> None:
        return None

    def preview(self) -> None:
        return None


@dataclass
class Followed:
    """A stream's columns, looked up within the poll that is due."""

    columns: FollowedColumns
    finder: Finder
    clock: HandClock
    covers: list[CoveredSchemas | None]

    def poll(self, after_s: float = 0.0) -> Converter | None:
        """What the next attempt leads to, if one is due by then."""
        self.clock.now_s += after_s
        self.columns.poll()
        return self.columns.poll() if self.columns._attempt is not None else None

    def attempts(self, *, seconds: int) -> list[int]:
        """The seconds from now at which attempts are made, of which all fail."""
        self.finder.outcomes += [BrokerError("no answer")] * seconds
        made = []
        for second in range(seconds):
            before = len(self.finder.asked)
            self.poll()
            made += [second] * (len(self.finder.asked) - before)
            self.clock.now_s += 1
        self.finder.outcomes.clear()
        return made


def followed(columns: str, *outcomes: Outcome, agreed: Stream | None = None) -> Followed:
    clock, finder, covers = HandClock(), Finder(stream_of(columns), list(outcomes)), list[CoveredSchemas | None]()

    def make(stream: Stream, covered: CoveredSchemas | None) -> Converter:
        covers.append(covered)
        return converter_of(stream)

    def at_once(work: Callable[[], None]) -> None:
        work()

    return Followed(
        FollowedColumns(finder, make, clock, structlog.get_logger(), agreed, at_once), finder, clock, covers
    )


def test_columns_of_records_are_looked_up_once_records_wait_for_them() -> None:
    world = followed("from_records", DiscoveredColumns(ONE))
    assert world.poll(after_s=100.0) is None
    assert not world.finder.asked
    assert ColumnsWait(world.columns).is_expected
    world.columns.want()
    assert required(world.poll()).stream == ONE
    assert world.poll(after_s=100.0) is None
    assert len(world.finder.asked) == 1


def test_columns_of_a_table_are_looked_at_again_and_used_when_they_change() -> None:
    columns = [DiscoveredColumns(ONE), DiscoveredColumns(TWO)]
    world = followed("from_table", *columns, agreed=ONE)
    assert world.poll(LOOK_AT_TABLES_S - 1) is None
    assert world.finder.asked == []
    assert world.poll(1.0) is None
    assert len(world.finder.asked) == 1
    assert required(world.poll(LOOK_AT_TABLES_S)).stream == TWO


def refuses(_stream: Stream, _covers: CoveredSchemas | None) -> Converter:
    raise ConfigError("a partition column is gone")


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (BrokerError("no answer"), "no answer"),
        (ConfigError("none can be used"), "none can be used"),
        (ZeroDivisionError("by zero"), "columns not determined: ZeroDivisionError: by zero"),
        (DiscoveredColumns(TWO), "a partition column is gone"),
    ],
)
def test_failed_attempt_is_reported_and_leaves_the_columns_in_use(outcome: Outcome, problem: str) -> None:
    world = followed("from_table", outcome, agreed=ONE)
    world.columns.make = refuses
    assert world.poll(LOOK_AT_TABLES_S) is None
    assert required(world.columns.problem).problem == problem
    assert world.columns.agreed == ONE
    assert not ColumnsWait(world.columns).is_expected


def test_pauses_between_failures_grow_until_the_next_success() -> None:
    world = followed("from_records")
    world.columns.want()
    first = world.attempts(seconds=60)
    pauses = [after - before for before, after in pairwise(first)]
    assert pauses[-1] > pauses[0]
    world.finder.outcomes = [DiscoveredColumns(ONE)]
    assert world.poll(after_s=600.0) is not None
    world.columns.want([7])
    assert len(world.attempts(seconds=10)) > 1
    assert len(first) < 15


def test_schemas_of_records_are_looked_up_until_all_are_covered() -> None:
    world = followed("from_registry", DiscoveredColumns(ONE, frozenset({1})), DiscoveredColumns(TWO, frozenset({1, 2})))
    world.columns.want([1])
    world.columns.poll()
    world.columns.want([2])  # during the attempt
    assert required(world.columns.poll()).stream == ONE
    assert required(world.poll()).stream == TWO
    assert world.finder.asked == [{1}, {2}]
    assert world.columns.covered == {1, 2}
    world.columns.want([1, 2])
    assert world.poll(after_s=1.0) is None
    assert len(world.finder.asked) == 2


def test_schema_that_adds_no_field_is_waited_for_once() -> None:
    world = followed("from_registry", *[DiscoveredColumns(ONE, frozenset(range(1, most))) for most in (2, 4)])
    world.columns.want([1])
    world.poll()
    covers = required(world.covers[0])
    assert covers.waits([1]) is None
    wait = required(covers.waits([1, 3]))
    assert wait.ids == {3}
    assert not wait.is_over()
    assert world.poll(after_s=1.0) is None, "the columns are the same"
    assert wait.is_over()
    assert covers.waits([1, 3]) is None


def test_schema_with_more_fields_is_waited_for_until_records_are_decoded_with_them() -> None:
    world = followed("from_registry", DiscoveredColumns(ONE, frozenset({1})), DiscoveredColumns(TWO, frozenset({1, 2})))
    world.columns.want([1])
    world.poll()
    before = required(world.covers[0])
    wait = required(before.waits([2]))
    world.poll(after_s=1.0)
    assert wait.is_over()
    assert before.waits([2]) is not None, "its rows have no column for the new field"
    assert required(world.covers[1]).waits([2]) is None


def test_schema_that_the_registry_lacks_is_a_problem_if_it_was_found_before() -> None:
    world = followed("from_registry", *[DiscoveredColumns(ONE, frozenset({1}))] * 2)
    world.columns.want([1, 5])
    world.poll()
    assert world.columns.problem is None
    world.columns.want([2], are_checked=True)
    world.poll(after_s=1.0)
    problem: KafkaDeltaExpressError | None = world.columns.problem
    assert isinstance(problem, RegistryError)
    assert "the registry has no schema 2 for orders" in problem.problem
