"""A rewind while a loader settles: in every interleaving, the chain continues where it was rewound to.

The partition keeps a marker or an origin, the outboxes that are undelivered there, and its task's state.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from bootstrap.apply import stage as operator
from bootstrap.plans.repair import RewindPlan, plan_rewind
from bootstrap.plans.state import Author, Ends, PartitionState
from common.clock import SystemClock
from common.errors import StoreError
from common.settings import StartAt
from common.spans import Position
from common.stage.markers import marker_to_bytes
from common.stage.task_files import EMPTY_STATE, MarkedState, OutboxName, StateFileName, StateFiles, StateKind
from common.storage.store import FsspecStore
from stage_writer.partitions.resume_points import ResumePoint, ResumePoints
from stage_writer.stage.staging import ObjectStage
from tests.builders import required
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.group import HandClock, LonelyMember
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.markers import ORDERS
from tests.fakes.staging import Staging
from tests.fakes.stores import TrappedStore

KAFKA_END = 100
LISTED = 3
"""The loader's request before which it has the markers' names."""


def die() -> None:
    raise StoreError("killed", "")


class InterleavedStore(TrappedStore):
    """A store where another process acts right before one of the requests."""

    def before_request(self, number: int, act: Callable[[], object]) -> None:
        self.left = number

        def count(_request: str, _path: str) -> None:
            self.left -= 1
            if self.left == 0:
                act()

        self.before = count

    @property
    def has_acted(self) -> bool:
        return self.left <= 0


def outboxes_before(position: int) -> tuple[str, ...]:
    return tuple(OutboxName(ORDERS, Position(start), 0, "0b4a").path for start in range(0, position, 10))


def state_at(position: int) -> StateFiles:
    names = (StateFileName(ORDERS, Position(start), 0, "0b4a", StateKind.CHANGES) for start in range(0, position, 10))
    return StateFiles(None, tuple(name.path for name in names))


class RewindAndLoader:
    """A chain ``[0, 10) [10, 20) [20, 30)`` whose last data file is gone: the table is held at position 20.

    It is a topology's, and no record for its topics is delivered.
    """

    def __init__(self) -> None:
        self.staging = Staging(f"memory://{uuid.uuid4().hex}")
        markers = [self.staging.flush(0, start, start + 10) for start in (0, 10, 20)]
        last = markers[-1]
        self.tables = MemoryDeltaTables()
        self.store = InterleavedStore(self.staging.stage_url)
        for marker in markers:
            start, end = marker.span.start, marker.span.end
            of_task = MarkedState(state_at(end), state_at(start))
            manifest = replace(required(marker.manifest), outboxes=outboxes_before(end), state=of_task)
            self.store.write(marker.name.path, marker_to_bytes(replace(marker, manifest=manifest)))
            self.store.write(state_at(end).mark, b"changes")
        self.staging.store(self.staging.table).delete([file.path for table in last.tables for file in table.files])
        self.load(marker_retention="1h")
        assert self.table == 20

    @property
    def table(self) -> int:
        return self.tables.tables[self.staging.table].transactions["orders-0"] + 1

    def load(self, store: FsspecStore | None = None, **loader: object) -> None:
        """A loader's pass, which settles everything that it may."""
        staging, opened = self.staging, store or FsspecStore(self.staging.stage_url)

        class Opening(Staging):
            def store(self, url: str) -> FsspecStore:
                return opened if url == staging.stage_url else super().store(url)

        opening = Opening(staging.root)
        loader_for(opening, self.tables, settings_for(opening, **{"marker_retention": 0, **loader})).run_pass()

    def plan(self, to: int) -> RewindPlan:
        ends, staged = Ends(Position(0), Position(KAFKA_END)), operator.staged_markers(self.store, ORDERS)
        state = PartitionState(ORDERS, "orders", StartAt.LATEST, ends, Position(self.table), staged)
        return plan_rewind(state, Position(to), Author("operator", 1_000), below_table=to < self.table)

    def writer_begins(self) -> ResumePoint:
        """Where a writer of a stream with ``start: latest`` resumes, with its topology's outboxes and state there."""
        kafka = LonelyMember(HandClock(), {ORDERS: KAFKA_END})
        writer = ObjectStage(self.store, lambda _: self.store, SystemClock(), lambda: "0b4a", "writer")
        [stream] = settings_for(self.staging).streams
        changed = {"start": StartAt.LATEST, "topology": "tests.fakes.joining:build"}
        resume_point = ResumePoints(kafka, writer).of(ORDERS, stream.model_copy(update=changed))
        assert resume_point.outboxes == outboxes_before(resume_point.position)
        assert resume_point.state == (state_at(resume_point.position) if resume_point.position else EMPTY_STATE)
        return resume_point


def requests() -> Iterator[int]:
    """The numbers of a program's requests; who loops over them returns when it has made fewer."""
    yield from range(1, 1000)
    pytest.fail("the program never ends")


@pytest.mark.parametrize("to", [20, 10])
def test_rewind_before_any_request_of_settling_leaves_no_gap(to: int) -> None:
    for moment in requests():
        meeting = RewindAndLoader()
        plan = meeting.plan(to)
        meeting.store.before_request(moment, partial(operator.rewind, meeting.store, plan))
        meeting.load(meeting.store)
        if not meeting.store.has_acted:
            assert moment > 5, "the rewind ran before each of the loader's requests"
            return
        assert meeting.writer_begins().position == to, f"before request {moment} of the loader"


def test_rewind_that_dies_while_a_loader_settles_leaves_no_gap() -> None:
    """The loader has listed the chain when the operator's process makes its first changes and dies."""
    for changes in requests():
        meeting = RewindAndLoader()
        plan, mortal = meeting.plan(10), InterleavedStore(meeting.staging.stage_url)
        mortal.before_request(changes, die)

        def rewind(mortal: InterleavedStore = mortal, plan: RewindPlan = plan) -> None:
            with suppress(StoreError):
                operator.rewind(mortal, plan)

        meeting.store.before_request(LISTED, rewind)
        meeting.load(meeting.store)
        assert meeting.store.has_acted
        if not mortal.has_acted:
            assert changes > 5, "it died before each of its requests"
            return
        assert meeting.writer_begins().position <= 30, f"it died before its request {changes}"


@pytest.mark.parametrize("to", [20, 10])
def test_settling_before_any_request_of_a_rewind_leaves_no_gap(to: int) -> None:
    for moment in requests():
        meeting = RewindAndLoader()
        plan = meeting.plan(to)
        meeting.store.before_request(moment, meeting.load)
        operator.rewind(meeting.store, plan)
        if not meeting.store.has_acted:
            assert moment > 5, "the loader ran before each of the rewind's requests"
            return
        assert meeting.writer_begins().position == to, f"before request {moment} of the rewind"
