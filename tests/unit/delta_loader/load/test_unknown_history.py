"""What a table's log no longer tells is held as soon as it matters, and never assumed; what it tells is found."""

import copy
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from bootstrap.plans.accept import AcceptPlan, RollbackEvent, plan_go_on, require_main_too
from common.errors import TableError, UsageError
from common.remedies import CONFIG
from common.sizes import time_text
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.resolutions import Resolution
from common.tables.commit_metadata import CommitMetadata, Decision
from common.tables.counts import Counts, Replaced
from common.tables.history import LoggedCommit
from common.tables.rollback import FARTHEST, MOST_COMMITS, Rollback, find_rollback, own_history
from common.tables.state import TableState
from common.tables.stream_history import StreamHistory, histories_of
from delta_loader.load.report import StreamReport
from delta_loader.plan.plan import TableShape
from delta_loader.service import LoaderService
from delta_loader.tables.commits import CommitOutcome, TableCommit, Target
from tests.builders import required
from tests.fakes.delta_tables import MemoryDeltaTables, MemoryTable
from tests.fakes.loading import loader_for, routed_settings_for, settings_for
from tests.fakes.staging import Staging

DAY_MS = 86_400_000


@dataclass
class Logged(MemoryDeltaTables):
    """Tables whose log has commits of others, RESTOREs, times, and an end."""

    begins: int = 0
    """The oldest version that the log still has."""
    restored: dict[int, int] = field(default_factory=dict)
    read: int = 0
    """How many commits were read."""
    away: set[str] = field(default_factory=set)
    """The tables that cannot be read."""

    def __post_init__(self) -> None:
        super().__init__()

    def state(self, url: str) -> TableState | None:
        if url in self.away:
            raise TableError("it is away", "wait")
        return super().state(url)

    def replace(self, url: str) -> None:
        """A commit of the stream that replaces a range, and moves no position."""
        self.others(url)
        commit = self.tables[url].commits[-1]
        source = TopicPartition(Topic("orders"), Partition(0))
        replaced = {source: Replaced(Span(Position(2), Position(5)), "a" * 32, Counts(3, 3, 0, 0))}
        metadata = CommitMetadata("r", "orders", {}, None, replaced=replaced)
        self.tables[url].commits[-1] = replace(commit, app_id="orders", metadata=metadata)

    def others(self, url: str, commits: int = 1, restores: int | None = None) -> None:
        """Commits of another program; the last one may put the table back to a version."""
        table = self.tables[url]
        nothing = CommitMetadata("x", "another", {}, None)
        target = Target(url, table.table_id, TableShape(table.schema, table.partition_by), {}, 0)
        table.commits += [TableCommit(target, "another", (), {}, {}, nothing)] * commits
        if restores is not None:
            self.restored[len(table.commits)] = restores

    def history(self, url: str, newest: int) -> Iterator[LoggedCommit]:
        for commit in super().history(url, newest):
            if commit.version < self.begins:
                return
            self.read += 1
            to = self.restored.get(commit.version)
            moment_ms = Staging.created_ms + commit.version * DAY_MS
            operation = commit.operation if to is None else "RESTORE"
            yield replace(commit, timestamp_ms=moment_ms, operation=operation, restored_version=to)


@dataclass
class World:
    staging: Staging = field(default_factory=lambda: Staging(f"memory://{uuid.uuid4().hex}"))
    tables: Logged = field(default_factory=Logged)
    running: LoaderService | None = None
    more: tuple[str, ...] = ()
    """Topics that the config names too."""

    @property
    def url(self) -> str:
        return self.staging.table

    def load(self, *, again: bool = True, failing: bool = False) -> dict[str, str]:
        """A pass, by a loader that was started just now or by the one that runs; why partitions are held."""
        if again or self.running is None:
            stream = {"topics": [self.staging.topic, *self.more]}
            settings = settings_for(self.staging, stream, marker_retention="1ms")
            self.running = loader_for(self.staging, self.tables, settings)
        (report,) = self.running.run_pass()
        assert (report.failure is not None) == failing, report.failure
        self.report: StreamReport = report
        return {str(partition): held.reason for partition, held in report.held.items()}

    def loads(self, partition: int, start: int, end: int) -> None:
        self.staging.flush(partition, start, end)
        self.load()

    def log_is_cleaned(self, others: int = 20, begins: int = 15) -> None:
        """After so many commits of another program, the log's clean-up takes those before a version."""
        self.tables.others(self.url, others)
        self.tables.begins = begins

    def loaded_by_another_program(self) -> None:
        """The table has orders/0 up to 10, a log that was cleaned up, and no commit or marker of the stream."""
        self.loads(0, 0, 10)
        self.tables.tables[self.url].commits.clear()
        self.log_is_cleaned()
        self.staging.store(self.staging.stage_url).delete(self.staging.markers())
        self.staging.previous.clear()

    def forget(self) -> None:
        """Commits of a release that did not name all chains."""
        table = self.tables.tables[self.url]
        older = (replace(commit.metadata, positions={}, topic_ids={}, plain_topic=None) for commit in table.commits)
        table.commits = [
            replace(commit, metadata=metadata) for commit, metadata in zip(table.commits, older, strict=True)
        ]

    def go_on(self, version: int) -> None:
        """An operator finds orders/0 complete up to 10."""
        table_id, positions = self.tables.tables[self.url].table_id, {self.staging.source(0): Position(10)}
        answer = Resolution("orders", self.url, table_id, version, Decision.GO_ON, positions, "eve", 5)
        self.staging.store(self.staging.stage_url).write(answer.path, answer.to_bytes())

    def expire(self, partition: int) -> None:
        """Let delta.setTransactionRetentionDuration take a txn action."""
        del self.tables.tables[self.url].transactions[f"orders-{partition}"]

    def begun(self, partition: int) -> list[int]:
        """Where the files of a partition begin that the table has, each as often as it has it."""
        return self.tables.begun(self.url, f"orders-{partition}")


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("others", [0, MOST_COMMITS - 1, MOST_COMMITS + 1])
def test_restore_is_found_behind_any_number_of_commits(world: World, others: int) -> None:
    world.loads(0, 0, 10)
    world.loads(0, 10, 20)
    world.tables.others(world.url, restores=1)
    world.tables.others(world.url, others)
    world.staging.flush(0, 20, 30)
    with capture_logs() as logs:
        assert world.load() == {"orders/0": "table_restored"}
    assert [log["reason"] for log in logs if log["event"] == "partition held"] == ["table_restored"]
    (held,) = world.report.held.values()
    assert "--replay` loads what it lacks again" in held.remedy
    assert world.begun(0) == [0, 10]


def test_resolution_is_left_to_the_next_pass_once_the_loader_stops(world: World) -> None:
    world.loads(0, 0, 10)
    world.tables.others(world.url, 10, restores=0)
    world.log_is_cleaned(10, 15)
    world.staging.flush(0, 10, 20)
    assert world.load() == {"orders/0": "history_unknown"}
    world.go_on(15)
    before = len(world.tables.tables[world.url].commits)
    answers = iter([False, False])  # of the pass, and of the loop
    required(world.running).run_pass(lambda: next(answers, True))
    assert len(world.tables.tables[world.url].commits) == before
    assert world.load() == {}
    assert world.begun(0) == [0, 10]


@pytest.mark.parametrize("again", [True, False], ids=["a new loader", "the one that loaded"])
def test_log_that_begins_after_the_last_load_holds_new_loads(world: World, *, again: bool) -> None:
    world.loads(0, 0, 10)
    world.tables.others(world.url, 10, restores=0)
    world.log_is_cleaned(10, 15)
    assert world.load(again=again) == {}  # nothing to load: it does not matter yet
    world.staging.flush(0, 10, 20)
    for _ in range(2):
        assert world.load(again=again) == {"orders/0": "history_unknown"}
    (held,) = world.report.held.values()
    assert "version 15" in held.problem
    assert "orders/0 up to 10" in held.problem
    assert "bootstrap accept" in held.remedy
    assert f"bootstrap restart {CONFIG} --topic orders --partition 0 --at OFFSET --give-up --yes" in held.remedy, (
        "without --give-up the staged records, which are held, refuse the restart"
    )
    assert len(world.staging.markers()) == 2  # what may have been loaded is not settled
    assert world.begun(0) == [0]
    world.go_on(15)
    assert world.load() == {}
    assert world.begun(0) == [0, 10]


def test_nothing_is_settled_while_the_history_is_unknown_although_nothing_waits(world: World) -> None:
    world.loads(0, 0, 10)
    store, (path,) = world.staging.store(world.staging.stage_url), world.staging.markers()
    content = required(store.read(path))
    world.loads(0, 10, 20)
    world.log_is_cleaned()
    store.write(path, content)
    assert world.load() == {}
    assert len(world.staging.markers()) == 2


def test_load_of_another_partition_leaves_the_history_unknown(world: World) -> None:
    world.loads(0, 0, 10)
    world.tables.others(world.url, 10, restores=0)
    world.log_is_cleaned(10, 15)
    world.staging.created_ms += 30 * DAY_MS
    world.staging.flush(1, 0, 10)  # younger than the log, and so new to the table
    assert world.load() == {"orders/0": "history_unknown", "orders/1": "history_unknown"}
    world.staging.flush(0, 10, 20)
    assert world.load() == {"orders/0": "history_unknown", "orders/1": "history_unknown"}
    assert (world.begun(0), world.begun(1)) == ([0], [])
    world.go_on(15)
    assert world.load() == {}
    assert (world.begun(0), world.begun(1)) == ([0, 10], [0])


@pytest.mark.parametrize("again", [True, False], ids=["a new loader", "one that saw it"])
def test_replaced_range_leaves_the_history_unknown(world: World, *, again: bool) -> None:
    world.loads(0, 0, 10)
    world.tables.others(world.url, 10, restores=0)
    world.log_is_cleaned(10, 15)
    world.load()
    world.tables.replace(world.url)
    world.staging.flush(0, 10, 20)
    assert world.load(again=again) == {"orders/0": "history_unknown"}
    assert world.begun(0) == [0]
    world.go_on(15)
    assert world.load(again=again) == {}


@pytest.mark.parametrize("again", [True, False], ids=["a new loader", "the one that did"])
def test_completed_deferred_range_leaves_the_history_unknown(world: World, *, again: bool) -> None:
    """The dead-letter table failed at first; the main table's note that it is complete moves no position."""
    world.tables.away = {world.staging.dead_letters}
    world.staging.flush(0, 0, 10, dead=[3])
    world.load(failing=True)
    world.tables.others(world.url, 10, restores=0)
    world.log_is_cleaned(10, 15)
    world.tables.away = set()
    assert world.load() == {}
    world.staging.flush(0, 10, 20)
    assert world.load(again=again) == {"orders/0": "history_unknown"}
    assert world.begun(0) == [0]
    world.go_on(15)
    assert world.load(again=again) == {}
    assert world.begun(0) == [0, 10]


@pytest.mark.parametrize("is_replaced", [True, False], ids=["a replaced range", "commits of others"])
def test_loader_that_saw_the_whole_log_continues_after_its_clean_up(world: World, *, is_replaced: bool) -> None:
    world.loads(0, 0, 10)
    world.tables.others(world.url, 10)
    world.load(again=False)
    if is_replaced:
        world.tables.replace(world.url)
    world.log_is_cleaned(0 if is_replaced else 10, 5)
    world.staging.flush(0, 10, 20)
    assert world.load(again=False) == {}
    assert world.begun(0) == [0, 10]


def test_log_with_the_last_load_is_enough(world: World) -> None:
    for start in range(0, 100, 10):
        world.loads(0, start, start + 10)
    world.log_is_cleaned(30, 10)
    world.staging.flush(0, 100, 110)
    assert world.load() == {}


def test_table_of_another_program_continues_after_log_clean_up(world: World) -> None:
    world.loaded_by_another_program()
    world.staging.touch(0, 9)  # where bootstrap lets the chain begin
    world.staging.flush(0, 10, 20)
    assert world.load() == {}
    assert world.begun(0) == [10]


def test_markers_loaded_by_another_program_are_settled_after_log_clean_up(world: World) -> None:
    world.loaded_by_another_program()
    world.staging.created_ms += 30 * DAY_MS  # younger than the log
    world.staging.flush(0, 0, 10)
    assert world.load() == {}
    world.staging.flush(0, 10, 20)
    assert world.load() == {}
    assert world.begun(0) == [10]
    assert len(world.staging.markers()) == 1


@pytest.mark.parametrize("days", [30, 0], ids=["younger than the log", "maybe older"])
def test_position_of_a_former_topic_is_not_that_of_its_successor(world: World, days: int) -> None:
    world.loads(0, 0, 10)
    world.loads(0, 10, 30)
    world.log_is_cleaned()
    staging = world.staging
    staging.topic, staging.created_ms = "orders_v2", staging.created_ms + days * DAY_MS
    staging.previous.clear()
    staging.flush(0, 0, 10)
    staging.flush(0, 10, 20)
    assert world.load() == {"orders_v2/0": "history_unknown"}
    staging.flush(0, 20, 40)
    assert world.load() == {"orders_v2/0": "history_unknown"}
    assert len([path for path in staging.markers() if "orders_v2" in path]) == 3, "nothing is settled until it is known"
    assert world.begun(0) == [0, 10]
    # A chain of its own is known by its generation, also once the log has lost its commits too.
    store, partition = staging.store(staging.stage_url), staging.source(0)
    store.write(origin_path(partition), origin_to_bytes(ChainOrigin(Position(0), 1)))  # what bootstrap restart does
    store.delete([path for path in staging.markers() if "orders_v2" in path])
    staging.generation, staging.created_ms = 1, staging.created_ms + 30 * DAY_MS
    staging.previous.clear()
    staging.flush(0, 0, 10)
    assert world.load() == {}
    assert world.tables.tables[world.url].transactions == {"orders-0": 29, "orders-0@1": 9}
    world.log_is_cleaned(20, 40)
    assert world.load() == {}


def test_former_topic_is_held_when_the_config_names_it_again(world: World) -> None:
    """What was loaded after the log was cleaned up names the new topic alone: the table may have the other one's."""
    world.loads(0, 0, 10)
    world.log_is_cleaned()
    staging = world.staging
    staging.topic, staging.generation, staging.created_ms = "orders_v2", 1, staging.created_ms + 30 * DAY_MS
    begin = origin_to_bytes(ChainOrigin(Position(0), 1))  # what bootstrap restart --at 0 does, as the hold says
    staging.store(staging.stage_url).write(origin_path(staging.source(0)), begin)
    staging.previous.clear()
    staging.flush(0, 0, 20)
    assert world.load() == {}
    world.tables.others(world.url, 20)
    staging.flush(0, 20, 30)
    assert world.load() == {}
    world.more = ("orders",)
    for _ in range(2):
        assert world.load() == {"orders/0": "history_unknown"}
    (held,) = world.report.held.values()
    assert f"bootstrap restart {CONFIG} --topic orders --partition 0 --at OFFSET --give-up --yes" in held.remedy
    assert "not before" not in held.remedy
    staging.topic, staging.previous = "orders", {}
    begin = origin_to_bytes(ChainOrigin(Position(10), 1))
    staging.store(staging.stage_url).write(origin_path(staging.source(0)), begin)
    staging.store(staging.stage_url).delete([path for path in staging.markers() if "/orders/" in path])
    world.more = ("orders_v2",)
    staging.flush(0, 10, 20)
    assert world.load() == {}
    assert world.begun(0) == [0, 10]


def test_former_topic_that_was_not_loaded_is_loaded_when_the_config_names_it_again(world: World) -> None:
    world.staging.flush(0, 0, 10)
    world.staging.topic, world.staging.previous = "orders_v2", {}
    world.loads(0, 0, 10)
    world.loads(0, 10, 20)
    world.more = ("orders",)
    assert world.load() == {}
    assert world.begun(0) == [0]


def test_restart_too_soon_after_the_oldest_commit_names_the_time_to_wait_for(world: World) -> None:
    world.loads(0, 0, 10)
    world.log_is_cleaned()
    staging = world.staging
    oldest_ms = staging.created_ms + 15 * DAY_MS
    staging.topic, staging.created_ms = "orders_v2", oldest_ms + 3_599_000
    staging.previous.clear()
    staging.flush(0, 0, 10)
    staging.flush(0, 10, 20)
    soonest = f"not before {time_text(oldest_ms + 3_600_001)}"
    begin = origin_to_bytes(ChainOrigin(Position(0), 1))
    for made_ms in (None, oldest_ms + 3_600_000, oldest_ms + 3_600_001):
        if made_ms is not None:  # the command was run as the hold says
            staging.store(staging.stage_url).write(origin_path(staging.source(0)), begin)
            staging.store(staging.stage_url).delete([path for path in staging.markers() if "orders_v2" in path])
            staging.generation, staging.created_ms = 1, made_ms
            staging.previous.clear()
            staging.flush(0, 0, 10)
        if made_ms != oldest_ms + 3_600_001:
            assert world.load() == {"orders_v2/0": "history_unknown"}
            (held,) = world.report.held.values()
            assert soonest in held.remedy
    assert world.load() == {}


def test_markers_are_not_settled_where_the_history_is_unknown(world: World) -> None:
    world.loads(0, 0, 10)
    world.loads(0, 10, 20)
    world.log_is_cleaned()
    world.staging.previous.clear()
    world.staging.flush(0, 0, 10)
    for _ in range(2):
        assert world.load() == {}  # nothing is to be loaded
    assert len(world.staging.markers()) == 2


def test_chain_of_a_new_topic_begun_at_the_position_of_the_table_is_loaded(world: World) -> None:
    world.loads(0, 0, 10)
    world.log_is_cleaned()
    world.staging.topic = "orders_v2"
    world.staging.previous.clear()
    world.staging.touch(0, 9)
    world.staging.flush(0, 10, 20)
    assert world.load() == {}


def test_partition_that_the_former_topic_lacked_is_loaded(world: World) -> None:
    """As do topics of other streams."""
    world.loads(0, 0, 10)
    world.log_is_cleaned()
    staging = world.staging
    for topic, app_id, partition in (("payments", "payments", 0), ("orders_v1", "orders", 1)):
        replace(staging, topic=topic, app_id=app_id, previous={}).flush(partition, 0, 10)
    staging.store(staging.stage_url).delete([path for path in staging.markers() if "/orders/" in path])
    staging.created_ms += 30 * DAY_MS
    staging.previous.clear()
    staging.flush(0, 0, 10)
    assert world.load() == {}


def test_idle_stream_reads_only_new_commits_of_others(world: World) -> None:
    world.loads(0, 0, 10)
    for _ in range(50):
        world.tables.others(world.url, 3)
        world.load(again=False)
    assert (before := world.tables.read) < 50 * 3 * 3  # and not all since its own last commit, each time
    world.load(again=False)
    assert world.tables.read == before


def test_restore_among_the_new_commits_is_found(world: World) -> None:
    for start in (0, 10):
        world.staging.flush(0, start, start + 10)
        world.load(again=False)
    world.tables.others(world.url, 5)
    world.load(again=False)
    world.tables.others(world.url, 1, restores=1)
    world.tables.others(world.url, 5)
    world.staging.flush(0, 20, 30)
    assert world.load(again=False) == {"orders/0": "table_restored"}


@pytest.mark.parametrize("release", ["this", "the last"])
@pytest.mark.parametrize("others", [5, MOST_COMMITS + 5])
def test_expired_position_is_found_below_any_number_of_commits(world: World, others: int, release: str) -> None:
    world.staging.flush(1, 0, 10)
    world.loads(0, 0, 10)
    if release == "the last":
        world.forget()
    world.tables.others(world.url, others)
    world.expire(1)
    world.staging.flush(0, 10, 20)
    for _ in range(2):
        assert world.load() == {"orders/1": "txn_expired"}
    (held,) = world.report.held.values()
    assert "orders/1 up to 10" in held.problem
    assert "UNSET TBLPROPERTIES" in held.remedy
    assert (world.begun(0), world.begun(1)) == ([0, 10], [0])


@pytest.mark.parametrize("resolved", [False, True], ids=["", "a resolution names no chain either"])
def test_first_marker_is_held_where_the_log_cannot_prove_it_new(world: World, *, resolved: bool) -> None:
    world.loads(1, 0, 10)
    world.loads(0, 0, 10)
    world.forget()
    world.tables.others(world.url, 3, restores=1 if resolved else None)
    if resolved:
        world.go_on(5)
    world.tables.begins = 2  # partition 1's own commit is gone, partition 0's is there
    world.expire(1)
    for start in (10, 20):  # and the commits of others of its stream prove nothing
        world.staging.flush(0, start, start + 10)
        assert world.load() == {"orders/1": "history_unknown"}
    (held,) = world.report.held.values()
    assert "where OFFSET is the first one that the table lacks" in held.remedy
    assert "orders-1" not in world.tables.tables[world.url].transactions
    assert (world.begun(0), world.begun(1)) == ([0, 10, 20], [0])
    begin = ChainOrigin(Position(10), 1)
    store, partition = world.staging.store(world.staging.stage_url), world.staging.source(1)
    store.write(origin_path(partition), origin_to_bytes(begin))  # what bootstrap restart --at 10 does
    store.delete([path for path in world.staging.markers() if "/1/" in path])
    world.staging.generation = 1
    world.staging.previous.clear()
    world.staging.flush(1, 10, 20)
    assert world.load() == {}
    assert world.begun(1) == [0, 10]


def test_commit_that_leaves_out_a_damaged_marker_names_the_chain_that_is_held(world: World) -> None:
    """The tables are read again between plan and commit then. Without the name, a clean log would free the chain."""
    world.loads(1, 0, 10)
    world.loads(0, 0, 10)
    world.forget()
    world.tables.others(world.url, 3)
    world.tables.begins = 2
    world.expire(1)
    store = world.staging.store(world.url)
    world.staging.flush(0, 10, 20)
    known = {item.path for item in store.list("")}
    world.staging.flush(0, 20, 30)
    store.delete([item.path for item in store.list("") if item.path not in known])
    assert world.load() == {"orders/0": "missing_file", "orders/1": "history_unknown"}
    commit = world.tables.tables[world.url].commits[-1]
    assert commit.metadata.unproved == {(world.staging.source(1), 0)}


def test_markers_below_one_of_another_stream_do_not_count_as_new(world: World) -> None:
    """Another config stages into the chain, and the table has lost what it knew of its own."""
    world.loads(0, 0, 10)
    world.log_is_cleaned()
    world.expire(0)
    world.staging.flush(0, 10, 20)
    world.staging.app_id = "returns"
    world.staging.flush(0, 20, 30)
    assert world.load() == {"orders/0": "history_unknown"}
    assert world.begun(0) == [0]


@pytest.mark.parametrize("known_by", ["being younger than the log", "what the last commit says"])
def test_first_marker_is_loaded_where_it_is_known_to_be_new(world: World, known_by: str) -> None:
    world.loads(0, 0, 10)
    if known_by == "being younger than the log":
        world.forget()
        world.staging.created_ms += 30 * DAY_MS
    world.tables.others(world.url, 3)
    world.tables.begins = 2 if known_by == "being younger than the log" else 1
    world.staging.flush(1, 0, 10)
    if known_by == "being younger than the log":
        assert world.load().keys() == {"orders/0", "orders/1"}  # what orders/0 has is unknown, and comes first
        world.go_on(2)
    assert world.load() == {}
    assert world.begun(1) == [0]


def test_records_that_were_loaded_out_of_another_stage_are_known_after_their_position_expired(world: World) -> None:
    world.loads(0, 0, 10)
    world.tables.others(world.url, 30)
    world.expire(0)
    world.staging.store(world.staging.stage_url).delete(world.staging.markers())  # as an empty stage is
    world.staging.previous.clear()
    world.staging.created_ms += 30 * DAY_MS
    world.staging.flush(0, 0, 10)
    assert world.load() == {"orders/0": "txn_expired"}
    assert world.begun(0) == [0]


def test_stream_new_to_a_table_reads_a_bounded_part_of_its_log(world: World) -> None:
    world.tables.create(world.url, TableShape(world.staging.schema(), world.staging.partition_by))
    world.tables.others(world.url, 4 * MOST_COMMITS)
    first_ms = world.staging.created_ms
    for partition, days in enumerate((4 * MOST_COMMITS - 3, 3 * MOST_COMMITS - 3)):
        world.staging.created_ms = first_ms + days * DAY_MS
        world.staging.flush(partition, 0, 10)
    assert world.load() == {}
    assert world.begun(0) == world.begun(1) == [0]
    assert world.tables.read < 2 * MOST_COMMITS + 20


def test_reading_of_a_log_is_bounded() -> None:
    read = 0

    def others() -> Iterator[LoggedCommit]:
        nonlocal read
        for version in range(2 * FARTHEST, 0, -1):
            read += 1
            yield LoggedCommit(version, "WRITE")

    assert find_rollback(others(), "orders") is None
    assert read == FARTHEST
    assert own_history(others(), "orders").oldest is not None
    assert read == 2 * FARTHEST


class Lake:
    """A stream with a route and dead letters, loaded after each flush by a loader of its own."""

    def __init__(self, staging: Staging, tables: MemoryDeltaTables | None = None) -> None:
        self.staging = staging
        self.tables = tables or MemoryDeltaTables()
        self.end = 0
        self.partition: TopicPartition = staging.source(0)
        (self.stream,) = routed_settings_for(staging, ("a",)).streams

    def load(self, *, dead: bool = True) -> StreamReport:
        self.flush(dead=dead)
        return self.one_pass()

    def flush(self, *, dead: bool = True) -> None:
        """Ten records, with one for the route and one dead letter."""
        start, self.end = self.end, self.end + 10
        letters = [start + 2] if dead else []
        self.staging.flush(0, start, self.end, routed={"a": [start + 1]} if dead else {}, dead=letters)

    def one_pass(self) -> StreamReport:
        settings = routed_settings_for(self.staging, ("a",), marker_retention=0, max_files=1)
        (report,) = loader_for(self.staging, self.tables, settings).run_pass()
        return report

    def kept(self, url: str) -> MemoryTable:
        return copy.deepcopy(self.tables.tables[url])

    def histories(self) -> dict[str, StreamHistory]:
        states = {url: state for url in self.stream.tables if (state := self.tables.state(url)) is not None}
        return histories_of(self.stream, states, self.tables.history)

    def rollback(self, url: str) -> Rollback | None:
        return self.histories()[url].rollback

    def accept(self, url: str) -> None:
        """What `bootstrap accept --go-on` leaves in the stage."""
        back, table = required(self.rollback(url)), self.tables.tables[url]
        positions = {self.partition: Position(table.transactions["orders-0"] + 1)} if table.transactions else {}
        resolution = Resolution(
            "orders", url, table.table_id, back.cause.version, Decision.GO_ON, positions, "eve", 5, {}
        )
        self.staging.store(self.staging.stage_url).write(resolution.path, resolution.to_bytes())

    def others_commit(self, url: str) -> None:
        table = self.tables.tables[url]
        target = Target(url, table.table_id, TableShape(table.schema, table.partition_by), {}, 0)
        table.commits.append(TableCommit(target, "x", (), {}, {}, CommitMetadata("x", "another", {}, None)))


@pytest.fixture
def lake(staging: Staging) -> Lake:
    return Lake(staging)


@pytest.mark.parametrize("others", [0, 5])
@pytest.mark.parametrize("which", ["route", "dead letters"])
def test_older_copy_of_a_secondary_table_holds_the_stream(lake: Lake, which: str, others: int) -> None:
    url = lake.staging.route("a") if which == "route" else lake.staging.dead_letters
    lake.load()
    older = lake.kept(url)
    assert lake.load().held == {}
    lake.tables.tables[url] = older
    for _ in range(others):
        lake.others_commit(url)
    held = lake.load().held[lake.partition]
    assert held.reason == "table_restored"
    assert held.problem == (
        f"{url} is an older copy of the table, without version 2 of this stream: it has the records of "
        "orders/0 up to 10"
    )
    assert held.remedy == (
        "put the table's newest folder back; or `bootstrap accept ⟨config⟩ --stream orders --go-on --yes`, then "
        "`stage-writer replay ⟨config⟩ --topic orders --partition 0 --from 10 --to 20 --yes`"
    )
    assert lake.tables.tables[lake.staging.table].transactions == {"orders-0": 19}


def test_copy_without_any_load_is_noticed(lake: Lake) -> None:
    lake.load(dead=False)
    lake.tables.create(lake.staging.dead_letters, TableShape('{"type":"struct","fields":[]}', ()))
    empty = lake.kept(lake.staging.dead_letters)
    empty.table_id = "table-dead"
    lake.tables.tables.pop(lake.staging.dead_letters)
    lake.load()
    lake.tables.tables[lake.staging.dead_letters].table_id = "table-dead"
    lake.load(dead=False)
    lake.tables.tables[lake.staging.dead_letters] = empty
    held = lake.one_pass().held[lake.partition]
    assert "has the records of no partition" in held.problem
    replay = "`stage-writer replay ⟨config⟩ --topic orders --partition 0 --from 0 --to 30 --yes`"
    assert held.remedy.endswith(f"--go-on --yes`, then {replay}")


def test_accepted_copy_is_loaded_on_and_is_not_held_again(lake: Lake) -> None:
    url = lake.staging.dead_letters
    lake.load()
    older = lake.kept(url)
    for _ in range(3):
        lake.load()
    lake.tables.tables[url] = older
    assert lake.one_pass().held
    lake.accept(url)
    assert lake.one_pass().held == {}
    assert lake.rollback(url) is None, "before the next commit to the main table"
    for _ in range(3):
        assert lake.load().held == {}
    assert lake.rollback(url) is None
    assert lake.tables.tables[url].transactions == {"orders-0": lake.end - 1}


def test_table_that_lags_or_is_newer_or_was_made_again_is_not_held(lake: Lake) -> None:
    lake.load()
    for _ in range(3):
        assert lake.load(dead=False).held == {}, "its positions lag, and it lacks nothing"
    older = lake.kept(lake.staging.table)
    newer = lake.kept(lake.staging.dead_letters)
    lake.load()
    lake.tables.tables[lake.staging.table] = older
    assert lake.rollback(lake.staging.dead_letters) is None, "the main table's log is the older one"
    assert len(newer.commits) == 1
    lake.tables.tables.pop(lake.staging.dead_letters)
    lake.load()
    assert lake.load().held == {}, "it was dropped, and made again under another id"


def test_main_table_keeps_the_record_of_a_table_that_was_left_out(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    url = lake.staging.dead_letters
    lake.load()
    older = lake.kept(url)
    lake.load()
    state = lake.tables.state

    def away(of: str) -> TableState | None:
        if of == url:
            raise TableError("its log cannot be read", "see why")
        return state(of)

    monkeypatch.setattr(lake.tables, "state", away)
    lake.flush(dead=False)
    report = lake.load(dead=False)
    assert report.failure is not None
    assert report.commits > 1
    monkeypatch.setattr(lake.tables, "state", state)
    lake.tables.tables[url] = older
    assert lake.one_pass().held


def test_load_of_another_loader_meanwhile_is_not_taken_for_a_copy(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are read in parallel: the main table after the other loader's commits, and the secondary before."""
    url = lake.staging.dead_letters
    lake.load()
    before = required(lake.tables.state(url))
    lake.load()
    state, asked = lake.tables.state, 0

    def early(of: str) -> TableState | None:
        nonlocal asked
        asked += of == url
        return before if of == url and asked == 1 else state(of)

    monkeypatch.setattr(lake.tables, "state", early)
    assert lake.one_pass().held == {}
    assert asked > 1


def test_loader_that_runs_notices_a_copy_between_plan_and_commit(staging: Staging) -> None:
    url, copies = staging.dead_letters, dict[str, MemoryTable]()

    def put_back(commit: TableCommit) -> CommitOutcome | None:
        if commit.target.url == url and url in copies:
            tables.tables[url] = copies.pop(url)
        return None

    tables = MemoryDeltaTables(put_back)
    lake = Lake(staging, tables)
    lake.load()
    kept = lake.kept(url)
    lake.load()
    copies[url] = kept
    assert lake.load().held[lake.partition].reason == "table_restored"


def test_replay_of_a_copy_is_refused_with_the_commands_that_help(lake: Lake) -> None:
    url = lake.staging.dead_letters
    lake.load()
    older = lake.kept(url)
    lake.load()
    lake.tables.tables[url] = older
    event = RollbackEvent(url, older.table_id, required(lake.rollback(url)))
    plan: AcceptPlan = replace(plan_go_on(event, []), decision=Decision.REPLAY)
    with pytest.raises(UsageError, match="an older copy") as error:
        require_main_too(plan, "orders", {lake.partition: Position(20)})
    assert "replay ⟨config⟩ --topic orders --partition 0 --from 10 --to 20 --yes" in error.value.remedy
