"""The steps of `bootstrap accept`: inspect the stream's tables, plan, rewind the chains, and write the resolutions.

Rule: the resolutions come last, the main table's after those of the others; a second run completes an interrupted one.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bootstrap.apply import stage as staging
from bootstrap.apply.repair_lock import RepairLocks
from bootstrap.plans.accept import AcceptPlan, RollbackEvent, plan_go_on, plan_replay, require_main_too
from bootstrap.plans.state import Author, PartitionState
from common.errors import UsageError
from common.ports import AlreadyExists, ObjectStore
from common.remedies import CONFIG, quoted
from common.settings import Stream
from common.spans import TopicPartition
from common.stage.markers import Marker
from common.stage.resolutions import Resolution
from common.storage.store import FsspecStore
from common.tables.commit_metadata import Decision
from common.tables.rollback import Rollback, described
from common.tables.state import TableState
from common.tables.stream_history import StreamHistory, read_histories, read_identity
from common.tables.transactions import TxnIds


def require_whole(
    stream: Stream, histories: Callable[[Stream], Mapping[str, StreamHistory]], staged_for: Collection[str]
) -> None:
    """Raise UsageError when a table of the stream was rolled back: its lost records may exist only in the stage.

    ``histories`` are those of the tables that exist, by URL. ``staged_for`` are other app_ids that its chains were
    staged for: a new chain begins behind what was loaded under them, and no loader looks after them any more.
    """
    for app_id in (stream.app_id, *staged_for):
        of_app_id = stream.model_copy(update={"app_id": app_id})
        for url, history in histories(of_app_id).items():
            back = history.rollback
            if back is None:
                continue
            undo = "" if app_id == stream.app_id else f"restore the app_id {quoted(app_id)} and "
            raise UsageError(
                described(url, back),
                f"{undo}decide with `bootstrap accept {CONFIG} --stream {quoted(app_id)}` first; --give-up drops "
                "what is staged",
            )


@dataclass(frozen=True, slots=True)
class Accepting:
    stream: Stream
    open_store: Callable[[str], FsspecStore]
    state_of: Callable[[TopicPartition, TableState], PartitionState]
    """A Kafka partition as one of the tables sees it."""
    partitions: Sequence[TopicPartition]
    author: Author
    stage_url: str = ""
    """Where files that wait for Spark are."""

    def plan(self, tables: Mapping[str, TableState], decision: Decision, *, give_up: bool) -> tuple[AcceptPlan, ...]:
        """The resolutions, by table; the main table's last. Raises UsageError when no table was rolled back."""
        plans: dict[str, AcceptPlan] = {}
        histories = read_histories(self.stream, tables, self.open_store)
        for url in (url for url in (*self.stream.secondary_tables, self.stream.table) if url in tables):
            for back in self._events(url, tables[url], histories[url]):
                if url in plans:
                    msg = f"{url} also has partitions without positions ({back.kind.value})"
                    raise UsageError(msg, "accept that first, let the loader apply it, and run the command again")
                plans[url] = self._plan(url, tables[url], back, decision, give_up=give_up)
        if not plans:
            msg = f"no table of stream {self.stream.app_id!r} was rolled back, or the loader has applied the resolution"
            raise UsageError(msg, f"see `delta-loader status {CONFIG}` for what holds its partitions")
        main = plans.get(self.stream.table)
        if decision is Decision.REPLAY and plans.keys() - {self.stream.table}:
            table = tables.get(self.stream.table)
            identity = read_identity(self.stream, table, self.open_store(self.stream.table))
            ids = TxnIds(self.stream.app_id, self.stream.several_topics, plain_topic=identity.plain_topic)
            ids = ids.at({}, {} if table is None else table.transactions, self.partitions)
            now = (
                {}
                if table is None
                else {partition: ids.position(table.transactions, partition) for partition in self.partitions}
            )
            for url in plans.keys() - {self.stream.table}:
                require_main_too(plans[url], self.stream.app_id, now | dict(main.positions if main is not None else {}))
        return tuple(plans.values())

    def _events(self, url: str, table: TableState, history: StreamHistory) -> Iterator[Rollback]:
        if history.rollback is not None:
            yield history.rollback
        elif url == self.stream.table:
            states = [self.state_of(partition, table) for partition in self.partitions]
            generations = {state.partition: state.generation for state in states}
            unplaced = [state for state in states if state.table is None and state.staged and state.foreign is None]
            if unplaced:
                without_origin = [
                    state.partition
                    for state in unplaced
                    if state.chain.markers and state.chain.markers[0].previous is not None
                ]
                roots = {state.partition: state.chain.markers[0].manifest for state in unplaced if state.chain.markers}
                first_ms = {partition: root.created_ms for partition, root in roots.items() if root is not None}
                rollbacks = history.without_txn(
                    [state.partition for state in unplaced], without_origin, generations, first_ms
                )
                yield from (back for back in rollbacks if not back.is_unplaced)  # only an operator knows the offset
            placed = {
                state.partition: (state.table, state.chain.markers) for state in states if state.table is not None
            }
            unknown = history.unknown(placed, generations, self.open_store(self.stage_url))
            if unknown is not None:
                yield unknown

    def _plan(self, url: str, table: TableState, back: Rollback, decision: Decision, *, give_up: bool) -> AcceptPlan:
        gone = sorted(set(back.positions) - set(self.partitions))
        if gone:
            msg = f"{url} lost records of {gone[0]}, which no longer exists in Kafka, or is not the stream's"
            raise UsageError(msg, "restore the stream's topics, or RESTORE the table to where it was")
        states = [self.state_of(partition, table) for partition in sorted(back.positions)]
        if decision is Decision.GO_ON:
            return plan_go_on(RollbackEvent(url, table.table_id, back), states)
        return plan_replay(
            RollbackEvent(url, table.table_id, back), states, self.author, self._has_files, give_up=give_up
        )

    def _has_files(self, marker: Marker) -> bool:
        return all(
            self.open_store(self.stage_url if file.is_mixed else table.url).stat(file.path) is not None
            for table in marker.tables
            for file in table.files
        )

    def carry_out(self, store: ObjectStore, locks: RepairLocks, plans: Sequence[AcceptPlan]) -> None:
        """Rewind the chains, and write the resolutions. Raises UsageError when there is another resolution already."""
        for plan in plans:
            for partition in plan.partitions:
                if partition.rewind is not None and plan.event.url == self.stream.table:
                    with locks.locked(partition.partition, "bootstrap accept --replay") as locked_stage:
                        staging.rewind(locked_stage, partition.rewind)
        for plan in plans:
            self._write(store, self.resolution(plan))

    def resolution(self, plan: AcceptPlan) -> Resolution:
        return Resolution(
            app_id=self.stream.app_id,
            table=plan.event.url,
            table_id=plan.event.table_id,
            version=plan.event.back.cause.version,
            decision=plan.decision,
            positions=plan.positions,
            author=self.author.name,
            created_ms=self.author.now_ms,
            generations=plan.generations,
        )

    def _write(self, store: ObjectStore, other: Resolution) -> None:
        if not isinstance(store.create(other.path, other.to_bytes()), AlreadyExists):
            return
        resolution = Resolution.from_bytes(other.path, store.read(other.path) or b"")
        if (resolution.decision, resolution.positions) != (other.decision, other.positions):
            msg = f"there is another resolution: {other.path} says {resolution.decision.value}, by {resolution.author}"
            raise UsageError(msg, "let the loader apply it, or delete the object and run this command again")
