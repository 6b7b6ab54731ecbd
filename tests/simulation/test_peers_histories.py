"""Failures of a peer's sink, reproduced with the parts of this product: each history, and why it ends well here.

The peer is Apache Iceberg's sink for Kafka Connect. Its workers report the files that they have written to one of them,
the coordinator, through a control topic, and the coordinator commits them. Several places record the progress: the
workers' group, the coordinator's group, the coordinator's memory, and the table's snapshots. Here two do: the chain of
markers, in which a position can be claimed once, and the table's txn actions, which change together with the files.
"""

import io
import uuid
from collections import Counter
from collections.abc import Callable

import pyarrow.parquet as pq
import pytest

from common.errors import TableError
from common.spans import Position
from common.stage.markers import MarkerName
from delta_loader.tables.commits import CommitOutcome, Committed, TableCommit
from stage_writer.chains import StagedChains
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for
from tests.fakes.staging import Staging
from tests.simulation.history import History
from tests.simulation.world import Chances, Fault

_TIMED_OUT = "the connection timed out"


class Table(MemoryDeltaTables):
    """A table that records its commits, and where things can happen around a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[TableCommit] = []
        self.before_next: Callable[[], object] | None = None
        self.loses_next_answer = False

    def commit(self, commit: TableCommit) -> CommitOutcome:
        between, self.before_next = self.before_next, None
        if between is not None:
            between()
        self.asked.append(commit)
        outcome = super().commit(commit)
        if self.loses_next_answer:
            self.loses_next_answer = False
            raise TableError(_TIMED_OUT, "")
        return outcome


@pytest.fixture
def staging() -> Staging:
    return Staging(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def table() -> Table:
    return Table()


def load(staging: Staging, table: Table) -> None:
    """A loader's process, from its start to its end: it knows nothing of earlier ones."""
    loader_for(staging, table).run_pass()


def offsets(staging: Staging, table: Table) -> Counter[int]:
    store, offsets_read = staging.store(staging.table), Counter[int]()
    for path in table.tables[staging.table].paths:
        rows = pq.read_table(io.BytesIO(store.read(path) or b""), columns=["_kafka_offset"])
        offsets_read.update(rows[0].to_pylist())
    return offsets_read


def position(staging: Staging, table: Table) -> int:
    return table.tables[staging.table].transactions["orders-0"] + 1


def test_zombie_coordinator_loses_nothing(staging: Staging, table: Table) -> None:
    """apache/iceberg issue 17551: data lost with default settings.

    There a coordinator that had been replaced went on for days, and with each of its empty commits overwrote the living
    coordinator's offset of the control topic with its old one. When the living one died, its successor began at the old
    offset, which retention had removed, and so at the topic's end: files announced between were never committed, in
    silence.

    Here a loader keeps no offset of its own anywhere. A zombie can only commit its old plan again; the txn action is
    compared within the commit, so nothing happens. The successor reads the table and the stage's listing, both of which
    exist for as long as anything is not loaded.
    """
    staging.flush(0, 0, 10)
    load(staging, table)
    planned_long_ago = table.asked[0]
    for start in range(10, 50, 10):
        staging.flush(0, start, start + 10)
        load(staging, table)
        assert not isinstance(table.commit(planned_long_ago), Committed)
    staging.flush(0, 50, 60)  # announced, and its loader died
    assert not isinstance(table.commit(planned_long_ago), Committed), "the last to speak"
    assert position(staging, table) == 50, "and no position went back"
    load(staging, table)
    assert offsets(staging, table) == Counter(range(60))


def test_commit_with_a_lost_answer_is_not_repeated_by_the_next_owner(staging: Staging, table: Table) -> None:
    """apache/iceberg issue 16282: one data file in two snapshots after a coordinator switch.

    There the coordinator's commit succeeded, and a connection timed out before its position in the control topic was
    written elsewhere. Its successor read the same announcement and committed the same file again.

    Here the position is in the commit itself. The successor finds the marker in the stage as well, and the table says
    that it has these positions.
    """
    staging.flush(0, 0, 10)
    table.loses_next_answer = True
    load(staging, table)
    staging.flush(0, 10, 20)
    load(staging, table)
    load(staging, table)
    assert offsets(staging, table) == Counter(range(20))
    paths = table.tables[staging.table].paths
    assert len(paths) == len(set(paths))


def test_two_loaders_after_one_rebalance_load_once(staging: Staging, table: Table) -> None:
    """apache/iceberg issue 17637: two coordinators after one rebalance.

    There a task that lost the leader's partition asked the group, in the middle of its rebalance, whether it had led,
    got an answer without any partitions, and did not stop. Two coordinators then called for commits and divided the
    workers' answers among themselves.

    Here no message makes a process the leader. Two that plan the same at the same time both ask the table, which
    accepts one; the other plans again from the table's new state, and loads what is left.
    """
    for start in range(0, 40, 10):
        staging.flush(0, start, start + 10)

    def meanwhile() -> None:
        load(staging, table)
        staging.flush(0, 40, 50)

    table.before_next = meanwhile
    load(staging, table)
    load(staging, table)
    assert offsets(staging, table) == Counter(range(50))


@pytest.mark.parametrize("seed", range(3))
def test_partitions_that_wander_never_leave_the_table_without_a_loader(seed: int) -> None:
    """apache/iceberg pull request 12372: no coordinator at all, and records lost with a cooperative rebalance.

    There the coordinator ended with any partition that its task gave back, and began only with one that a task got. A
    task that gave one back and got none stopped leading, and no other took over; its buffers of the partitions that it
    kept were discarded as well, though the group did not read them again.

    Here no partition makes a loader. Writers keep their buffers of the partitions that stay theirs, and a writer that
    gets one reads the chain's end: so after any number of rebalances every record is in the table once.
    """
    history = History(seed, Chances(shuffle=0.05, crash=0.001, pause=0.001))
    history.broker.eager = False
    verdict = history.run()
    assert not verdict.problems
    assert verdict.faults[Fault.REBALANCE] > 10


def test_last_stale_writer_rewinds_nothing(staging: Staging, table: Table) -> None:
    """apache/iceberg pull request 17552: offsets rewound by the last stale writer.

    There the last commit of the group's offsets won, also one by a replaced writer; and the next writer read from
    there, or from its reset policy's position when retention had removed that offset.

    Here a writer reports its progress only by claiming the next position. A stale one finds its claim taken. If it
    comes so late that the position was freed, its marker lies below the chain's end: the next writer does not begin
    there, and the loader does not go back.
    """
    for start in range(0, 30, 10):
        staging.flush(0, start, start + 10)
    load(staging, table)
    store = staging.store(staging.stage_url)
    store.delete(MarkerName(staging.source(0), Position(start)).path for start in (0, 10))
    staging.flush(0, 10, 17, previous=0)  # the position is free again, and the stale one has it
    tail = StagedChains(store).tail(staging.source(0))
    assert tail is not None
    assert tail.end == 30, "the heir begins where the chain ends"
    staging.flush(0, 30, 40, previous=20)
    load(staging, table)
    assert position(staging, table) == 40
    assert offsets(staging, table) == Counter(range(40))
