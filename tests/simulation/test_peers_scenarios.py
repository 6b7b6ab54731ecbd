"""Scenarios of the peers' own test suites, under their names, where no other test here proves them already.

docs/internals/peers.md has the whole list, with the test here for each. A real writer and a real loader meet over
stores, a group, a clock and tables in memory. A process dies by an exception that is never caught.
"""

import io
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from bootstrap.apply.stage import make
from bootstrap.plans.plan import Make, plan_partition
from bootstrap.plans.state import Author, Ends, PartitionState
from common.errors import TableError
from common.ports import CreateOutcome, StoredObject
from common.settings import StartAt
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.markers import MarkerName
from common.storage.chunks import ByteChunks
from common.storage.store import FsspecStore
from delta_loader.tables.commits import CommitOutcome, TableCommit
from stage_writer.chains import StagedChains
from stage_writer.convert import StreamConverter
from stage_writer.ports import Polled
from stage_writer.stage.staging import ObjectStage
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.group import HandClock, LonelyMember
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging
from tests.fakes.writers import limits_with, new_writer, runtime_of

FIRST, SECOND = (TopicPartition(Topic("orders"), Partition(number)) for number in range(2))


class Death(BaseException):
    """The process died in the middle of its work."""


class Life:
    """The requests that a process has left; each is made, or the process dies before it."""

    def __init__(self, requests: int | None = None) -> None:
        """None: it does not die."""
        self._left = requests

    def spend(self) -> None:
        if self._left is not None:
            if self._left == 0:
                raise Death
            self._left -= 1


class MortalStore(FsspecStore):
    """A store as seen by a process that dies."""

    life = Life()

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self.life.spend()
        return super().list(prefix)

    def read(self, path: str) -> bytes | None:
        self.life.spend()
        return super().read(path)

    def create(self, path: str, data: bytes) -> CreateOutcome:
        self.life.spend()
        return super().create(path, data)

    def write(self, path: str, data: bytes) -> None:
        self.life.spend()
        super().write(path, data)

    def upload(self, path: str, data: ByteChunks) -> None:
        self.life.spend()
        super().upload(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        self.life.spend()
        super().delete(paths)


class MortalStaging(Staging):
    """`Staging` whose stores are those of one process."""

    life = Life()

    def store(self, url: str) -> FsspecStore:
        store = MortalStore(url)
        store.life = self.life
        return store


class Tables(MemoryDeltaTables):
    """Tables that record their commits."""

    life = Life()
    refuses: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[TableCommit] = []

    def commit(self, commit: TableCommit) -> CommitOutcome:
        self.life.spend()
        self.asked.append(commit)
        if self.refuses is not None:
            raise TableError(self.refuses, "")
        outcome = super().commit(commit)
        self.life.spend()
        return outcome


class Pipeline:
    """Kafka's partitions with records from 0 to their ends, and one stream."""

    def __init__(self, *ends: int) -> None:
        self.root = f"memory://{uuid.uuid4().hex}"
        self.kafka = {TopicPartition(Topic("orders"), Partition(number)): end for number, end in enumerate(ends)}
        self.tables = Tables()
        self.staging = Staging(self.root)

    def write(self, requests: int | None = None, group: LonelyMember | None = None) -> bool:
        """A writer stages all that Kafka has now; returns whether it lived, with so many requests."""
        staging = MortalStaging(self.root)
        staging.life = Life(requests)
        clock, settings = HandClock(), settings_for(self.staging)
        stage = ObjectStage(staging.store(staging.stage_url), staging.store, clock, lambda: uuid.uuid4().hex, "writer")
        writer = new_writer(
            *(StreamConverter(stream) for stream in settings.streams),
            source=group or LonelyMember(clock, dict(self.kafka)),
            stage=stage,
            runtime=runtime_of(clock),
            limits=limits_with(flush_records=4),
        )
        try:
            writer.run(until_caught_up=True)
        except Death:
            return False
        return True

    def load(self, requests: int | None = None, *, keep: str = "0s") -> bool:
        """A loader loads all that is staged; returns whether it lived, with so many requests."""
        staging = MortalStaging(self.root)
        staging.life = self.tables.life = Life(requests)
        try:
            loader_for(staging, self.tables, settings_for(self.staging, marker_retention=keep)).run_pass()
        except Death:
            return False
        finally:
            self.tables.life = Life()
        return True

    def offsets(self) -> dict[int, Counter[int]]:
        """By partition, how often the table has each offset."""
        offsets_read: dict[int, Counter[int]] = {}
        table = self.tables.tables.get(self.staging.table)
        for path in () if table is None else table.paths:
            data = FsspecStore(self.staging.table).read(path)
            rows = pq.read_table(io.BytesIO(data or b""), columns=["_kafka_partition", "_kafka_offset"])
            for row in rows.to_pylist():
                offsets_read.setdefault(row["_kafka_partition"], Counter())[row["_kafka_offset"]] += 1
        return offsets_read

    def all_once(self) -> dict[int, Counter[int]]:
        return {partition.partition: Counter(range(end)) for partition, end in self.kafka.items() if end}

    def positions(self) -> dict[str, int]:
        return self.tables.tables[self.staging.table].transactions


# kafka-delta-ingest


def test_zero_offset_issue() -> None:
    """The table has offset 0, and its txn action says 0, which is not "nothing": record 0 must not come again."""
    pipeline = Pipeline(1)
    assert pipeline.write()
    assert pipeline.load()
    assert pipeline.positions() == {"orders-0": 0}
    pipeline.kafka[FIRST] = 3
    assert pipeline.write()
    assert pipeline.load()
    assert pipeline.offsets() == {0: Counter(range(3))}


def test_zero_offset_issue_of_a_table_that_kafka_delta_ingest_wrote() -> None:
    """Of such a table there is a txn action, and neither a chain nor a commit of this product."""
    pipeline = Pipeline(3)
    ends = Ends(Position(0), Position(3))
    state = PartitionState(FIRST, "orders", StartAt.EARLIEST, ends, Position(1))
    outcome = plan_partition(state, Position(1), "from the table", Author("operator", 1_000)).outcome
    assert isinstance(outcome, Make)
    make(FsspecStore(pipeline.staging.stage_url), outcome.marker)
    assert pipeline.write()
    assert pipeline.load()
    assert pipeline.offsets() == {0: Counter([1, 2])}


def test_end_at_initial_offsets() -> None:
    """A run up to Kafka's end is over, however many records come meanwhile, and the next one begins where it ended."""
    pipeline = Pipeline(10)

    class Growing(LonelyMember):
        polls = 0

        def poll(self, timeout_s: float) -> Polled:
            polled = super().poll(timeout_s)
            self.polls += 1
            if self.polls > 50:
                raise Death
            self.ends[FIRST] += 5
            return replace(polled, ends={})  # the writer never reads it to its end

    growing = Growing(HandClock(), dict(pipeline.kafka))
    assert pipeline.write(group=growing)
    assert pipeline.load()
    staged = pipeline.positions()["orders-0"] + 1
    assert 10 <= staged < growing.ends[FIRST]
    pipeline.kafka[FIRST] = growing.ends[FIRST]
    assert pipeline.write()
    assert pipeline.load()
    assert pipeline.offsets() == pipeline.all_once()


# The Iceberg sink: recovery. Hudi's sink: its failures of participants and coordinators.


def test_worker_fails_during_processing() -> None:
    """Hudi's FAILURE_BEFORE_START_COMMIT, FAILURE_AFTER_START_COMMIT and FAILURE_AFTER_END_COMMIT: at each request."""
    for requests in range(1_000):
        pipeline = Pipeline(10, 3)
        lived = pipeline.write(requests)
        assert pipeline.load()
        assert pipeline.write(), "its successor"
        assert pipeline.load()
        assert pipeline.offsets() == pipeline.all_once(), f"the writer died before request {requests}"
        if lived:
            assert requests > 10
            return


@pytest.mark.parametrize("keep", ["0s", "1h"])
def test_coordinator_fails_while_waiting_for_worker_responses(keep: str) -> None:
    """Hudi's COORDINATOR_FAILED_AFTER_START_COMMIT and COORDINATOR_FAILED_AFTER_END_COMMIT, Iceberg's replacement
    coordinator that recovers files buffered by its predecessor: a loader dies at each request and after each commit."""
    for requests in range(1_000):
        pipeline = Pipeline(10, 3)
        assert pipeline.write()
        lived = pipeline.load(requests, keep=keep)
        pipeline.kafka[FIRST] = 12
        assert pipeline.write()
        assert pipeline.load(keep=keep), "its successor"
        assert pipeline.offsets() == pipeline.all_once(), f"the loader died before request {requests}"
        if lived:
            assert requests > 10
            return


def test_worker_fails_to_receive_begin_commit_event() -> None:
    """Hudi's SUBSET_CONNECT_TASKS_FAILED: no partition waits for another one's writer."""
    pipeline = Pipeline(10, 5)
    del pipeline.kafka[SECOND]  # its writer hears nothing
    assert pipeline.write()
    assert pipeline.load()
    assert pipeline.offsets() == {0: Counter(range(10))}
    pipeline.kafka[SECOND] = 5
    assert pipeline.write()
    assert pipeline.load()
    assert pipeline.offsets() == pipeline.all_once()


def test_coordinator_fails_to_commit_to_iceberg() -> None:
    """Also testCommitError: nothing moves, and what is left is committed with what has come."""
    pipeline = Pipeline(10)
    assert pipeline.write()
    pipeline.tables.refuses = "the catalog is away"
    assert pipeline.load()
    assert pipeline.offsets() == {}
    pipeline.tables.refuses = None
    pipeline.kafka[FIRST] = 15
    assert pipeline.write()
    assert pipeline.load()
    assert pipeline.offsets() == pipeline.all_once()


def test_commit_no_files() -> None:
    """Nothing is committed where nothing was staged; a marker without rows moves the position without files."""
    pipeline = Pipeline(0)
    assert pipeline.write()
    assert pipeline.load()
    assert pipeline.tables.asked == []
    pipeline.kafka[FIRST] = 4
    assert pipeline.write()
    assert pipeline.load()
    asked = len(pipeline.tables.asked)
    assert pipeline.load()
    assert len(pipeline.tables.asked) == asked, "an idle pass"
    pipeline.staging.previous[0] = Position(0)
    pipeline.staging.touch(0, 4)
    assert pipeline.load()
    assert pipeline.positions() == {"orders-0": 4}
    assert pipeline.offsets() == pipeline.all_once()


def test_commit_should_commit_offsets_only_for_partitions_we_made_progress_on() -> None:
    pipeline = Pipeline(10, 3)
    assert pipeline.write()
    assert pipeline.load()
    pipeline.kafka[SECOND] = 7
    assert pipeline.write()
    assert pipeline.load()
    assert set(pipeline.tables.asked[-1].advances) == {"orders-1"}
    assert pipeline.positions() == {"orders-0": 9, "orders-1": 6}


# kafka-bigquery-express


def test_should_get_the_highest_starting_offset_and_ignore_objects_that_do_not_correspond() -> None:
    """A writer begins after the highest marker of its own partition and ignores every other object."""
    staging = Staging(f"memory://{uuid.uuid4().hex}")
    for start in (0, 10, 20):
        staging.flush(0, start, start + 10)
    staging.flush(1, 0, 1_000)
    store = staging.store(staging.stage_url)
    folder = MarkerName(staging.source(0), Position(0)).path.rpartition("/")[0]
    for name in ("1000.avro", "FIRST.done", "1000.done.tmp", "-5.done", "1e9.done", "1000.DONE", "sub/1000.done"):
        store.write(f"{folder}/{name}", b"")
    store.write("done/orders/PARTITION/1000.done", b"")
    tail = StagedChains(store).tail(staging.source(0))
    assert tail is not None
    assert (tail.marker, tail.end) == (20, 30)
