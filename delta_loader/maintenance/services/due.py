"""The maintenance that is due for a table, as tasks: a pure function of its facts, the settings and the time.

Rules:

1. OPTIMIZE takes partitions that are no longer written to. Delta can restrict it to partitions and nothing finer, so a
   partition is taken whole, once its newest file is old enough; a partition that is never quiet is taken once it has so
   many small files that are old enough that rewriting the newer ones with them is worth it. For a table that is treated
   as a whole (no partitions, or liquid clustering) the files that are old enough are counted.
2. It has to be worth it: the rewrite must reduce the number of files by a minimum. After a run that is no longer the
   case, so nothing is rewritten forever. Liquid clustering, and Z-order of a table without partitions, rewrite much for
   little that is new: there the new part must also be a tenth of the table, or `_CUBE_BYTES`.
3. A task is one commit: some partitions, up to `piece_bytes`, and at most `_MOST_PARTITIONS`. Those that reduce the
   number of files the most come first.
4. VACUUM follows the table's own retention. It is refused if nothing then protects a file that is staged and not loaded
   (tables/vacuum.py): the retention is zero, or shorter than a flush and a load may take. It is postponed while such a
   file has waited almost that long, unless VACUUM reads the log instead of the folder (lite), which never contains one.
5. In the SQL of a task, a value is compared with its column's type, by casting Delta's own text of it, so exactly the
   partition itself is matched.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from common.remedies import CONFIG
from common.schema import DataType, Primitive, quote_name, quote_path, quote_text, type_to_ddl
from common.settings.services import TableServicesSettings, VacuumMode
from common.settings.values import duration_text
from common.sizes import counted, size_text
from delta_loader.maintenance.services.facts import PartitionFacts, PartitionValues, Service, TableFacts
from delta_loader.tables.vacuum import guarded_age_s, retention_s, vacuum_problem

_MOST_PARTITIONS = 200
_CUBE_BYTES = 100 * 2**30  # liquid clustering leaves cubes of this size alone
_SHARE = 10


@dataclass(frozen=True, slots=True)
class TableRules:
    settings: TableServicesSettings
    quiet_s: float
    z_order: tuple[str, ...] = ()
    safe_age_s: float = 0.0
    """How long a file may exist below the table before a commit refers to it: a flush, its retries and a load."""

    @property
    def small_below_bytes(self) -> int:
        return self.settings.optimize.target_file_bytes // 2


@dataclass(frozen=True, slots=True)
class MaintenanceTask:
    service: Service
    url: str
    why: str
    partitions: tuple[PartitionValues, ...] = ()
    """The partitions that it is about; empty for the whole table."""
    size_bytes: int = 0
    """Approximately how much is rewritten or read."""
    z_order: tuple[str, ...] = ()
    mode: VacuumMode = VacuumMode.AUTO


@dataclass(frozen=True, slots=True)
class ServiceRefused:
    service: Service
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Due:
    tasks: tuple[MaintenanceTask, ...] = ()
    refused: tuple[ServiceRefused, ...] = ()
    vacuum_waits: str = ""
    """Why no VACUUM is due, where the table itself does not show it; empty if VACUUM is due or refused."""


NOTHING = Due()


def due(facts: TableFacts, rules: TableRules, now_ms: int) -> Due:
    """The tasks in order: first those that make the others cheaper."""
    vacuum = _vacuum(facts, rules, now_ms)
    return Due(
        (
            *_checkpoint(facts, rules),
            *_optimize(facts, rules, now_ms),
            *_statistics(facts, rules),
            *([vacuum] if isinstance(vacuum, MaintenanceTask) else []),
        ),
        (vacuum,) if isinstance(vacuum, ServiceRefused) else (),
        vacuum if isinstance(vacuum, str) else "",
    )


def _checkpoint(facts: TableFacts, rules: TableRules) -> Iterator[MaintenanceTask]:
    wanted, commits = rules.settings.checkpoints, facts.log.commits_since_checkpoint
    if wanted.enabled and commits >= wanted.commits:
        yield MaintenanceTask(Service.CHECKPOINT, facts.url, f"{commits:,} commits since the last checkpoint")


def _optimize(facts: TableFacts, rules: TableRules, now_ms: int) -> Iterator[MaintenanceTask]:
    wanted = rules.settings.optimize
    if not wanted.enabled:
        return
    if not facts.partition_by:
        whole = next(iter(facts.partitions), PartitionFacts(()))
        files, size_bytes = _of_whole(facts, whole, rules)
        if _saved(files, size_bytes, wanted.target_file_bytes) >= wanted.min_files:
            yield MaintenanceTask(
                Service.OPTIMIZE,
                facts.url,
                f"{files:,} {'files that are not clustered' if facts.is_clustered else 'small files'}, "
                f"{size_text(size_bytes)}, older than {duration_text(rules.quiet_s)}",
                size_bytes=size_bytes,
                z_order=() if facts.is_clustered else rules.z_order,
            )
        return
    worth = [partition for partition in facts.partitions if _is_worthwhile(partition, rules, now_ms)]
    worth.sort(key=lambda partition: (-_saved_in(partition, rules), partition.newest_ms))
    for some in _grouped(worth, rules):
        files, size_bytes = (
            sum(partition.small_files for partition in some),
            sum(_rewritten(partition, rules) for partition in some),
        )
        yield MaintenanceTask(
            Service.OPTIMIZE,
            facts.url,
            f"{counted(files, 'small file')}, {size_text(size_bytes)}, in {counted(len(some), 'partition')}",
            tuple(partition.values for partition in some),
            size_bytes,
            rules.z_order,
        )


def _of_whole(facts: TableFacts, whole: PartitionFacts, rules: TableRules) -> tuple[int, int]:
    """The files that OPTIMIZE of a whole table is about; none where there are too few (rule 2)."""
    files, size_bytes = whole.small_files, whole.small_bytes
    if facts.is_clustered:
        files, size_bytes = whole.unclustered_files, whole.unclustered_bytes
    rewrites_much = facts.is_clustered or bool(rules.z_order)
    if rewrites_much and size_bytes * _SHARE < min(whole.size_bytes, _CUBE_BYTES):
        return 0, 0
    return files, size_bytes


def _is_worthwhile(partition: PartitionFacts, rules: TableRules, now_ms: int) -> bool:
    wanted = rules.settings.optimize
    if _is_quiet(partition, rules, now_ms):
        return _saved_in(partition, rules) >= wanted.min_files
    if wanted.min_files_busy is None or rules.z_order:
        return False
    return _saved_in(partition, rules) >= wanted.min_files_busy


def _is_quiet(partition: PartitionFacts, rules: TableRules, now_ms: int) -> bool:
    return partition.newest_ms < now_ms - rules.quiet_s * 1000


def _saved_in(partition: PartitionFacts, rules: TableRules) -> int:
    return _saved(partition.small_files, partition.small_bytes, rules.settings.optimize.target_file_bytes)


def _saved(files: int, size_bytes: int, target_bytes: int) -> int:
    """How many fewer files there are once these are combined."""
    return files - -(-size_bytes // target_bytes)


def _rewritten(partition: PartitionFacts, rules: TableRules) -> int:
    return partition.size_bytes if rules.z_order else partition.small_bytes


def _grouped(partitions: Iterable[PartitionFacts], rules: TableRules) -> Iterator[list[PartitionFacts]]:
    """The partitions in order, grouped into tasks (rule 3)."""
    group: list[PartitionFacts] = []
    size_bytes = 0
    for facts in partitions:
        more = _rewritten(facts, rules)
        if group and (size_bytes + more > rules.settings.optimize.piece_bytes or len(group) == _MOST_PARTITIONS):
            yield group
            group, size_bytes = [], 0
        group.append(facts)
        size_bytes += more
    if group:
        yield group


def _statistics(facts: TableFacts, rules: TableRules) -> Iterator[MaintenanceTask]:
    wanted = rules.settings.statistics
    size_bytes = sum(partition.bare_bytes for partition in facts.partitions)
    if wanted.enabled and facts.bare_files:
        part = f", {size_text(wanted.max_bytes)} of them now" if size_bytes > wanted.max_bytes else ""
        why = f"{facts.bare_files:,} files without statistics, {size_text(size_bytes)}{part}"
        yield MaintenanceTask(Service.STATISTICS, facts.url, why, size_bytes=min(size_bytes, wanted.max_bytes))


def _vacuum(facts: TableFacts, rules: TableRules, now_ms: int) -> MaintenanceTask | ServiceRefused | str:
    wanted, last = rules.settings.vacuum, facts.last(Service.VACUUM)
    if not wanted.enabled:
        return "table_services.vacuum.enabled is false"
    problem = vacuum_problem(facts.properties, rules.safe_age_s)
    if problem is not None:
        remedy = f"ALTER TABLE delta.`{facts.url}` SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = '7 days')"
        return ServiceRefused(Service.VACUUM, problem, remedy)
    kept = duration_text(retention_s(facts.properties) or 0.0)
    if last is not None and now_ms - last.at_ms < wanted.every_s * 1000:
        every, ago = duration_text(wanted.every_s), duration_text((now_ms - last.at_ms) // 1000)
        return f"it is due every {every}, and the last was {ago} ago"
    if facts.log.oldest_version == 0 and wanted.mode is not VacuumMode.FULL and _is_young(facts, now_ms):
        return f"files that leave the table are kept for {kept}, and the table is younger than that"
    when = "never before" if last is None else f"last {duration_text((now_ms - last.at_ms) // 1000)} ago"
    waits_s = 0.0 if facts.waiting_ms is None else (now_ms - facts.waiting_ms) / 1000
    mode = wanted.mode
    if waits_s > guarded_age_s(facts.properties):
        if mode is VacuumMode.FULL:
            why = f"files have been staged for {duration_text(waits_s // 1)} and not loaded; a VACUUM might delete them"
            remedy = (
                f"see why they are not loaded: `delta-loader status {CONFIG}`; a removed stream or topic has to be "
                "put back until they are, or its chain deleted from done/ in the stage"
            )
            return ServiceRefused(Service.VACUUM, why, remedy)
        mode = VacuumMode.LITE
    return MaintenanceTask(
        Service.VACUUM, facts.url, f"{when}; files that leave the table are kept for {kept}", mode=mode
    )


def _is_young(facts: TableFacts, now_ms: int) -> bool:
    return now_ms - facts.log.oldest_ms < (retention_s(facts.properties) or 0.0) * 1000


@dataclass(frozen=True, slots=True)
class Done:
    """The task's commit is in the table."""

    files_removed: int = 0
    files_added: int = 0
    bytes_removed: int = 0
    bytes_added: int = 0


@dataclass(frozen=True, slots=True)
class TaskAborted:
    """Another commit came in between, or the run was stopped: nothing was changed, and the next run checks again."""

    problem: str


@dataclass(frozen=True, slots=True)
class TaskFailed:
    problem: str


Outcome = Done | TaskAborted | TaskFailed


@dataclass(frozen=True, slots=True)
class TaskReport:
    task: MaintenanceTask
    outcome: Outcome
    duration_s: float


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    url: str
    facts: TableFacts | None
    """None when there is no table yet, or it could not be read."""
    rules: TableRules
    due: Due = NOTHING
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class RunReport:
    tasks: tuple[TaskReport, ...]
    snapshots: tuple[TableSnapshot, ...]
    left: tuple[MaintenanceTask, ...] = ()
    stopped_by: str = ""
    """Why; empty when nothing is left."""


def where(partitions: Sequence[PartitionValues], types: Mapping[str, DataType]) -> str:
    """The condition that selects these partitions; empty for the whole table."""
    conditions = [" AND ".join(_is(name, value, types.get(name)) for name, value in values) for values in partitions]
    return " OR ".join(f"({text})" for text in conditions if text)


def _is(name: str, value: str | None, data_type: DataType | None) -> str:
    if value is None:
        return f"{quote_name(name)} IS NULL"
    literal = quote_text(value)
    if data_type is not None and data_type is not Primitive.STRING:
        literal = f"CAST({literal} AS {type_to_ddl(data_type)})"
    return f"{quote_name(name)} = {literal}"


def z_order_by(columns: Sequence[str]) -> str:
    """The ZORDER BY clause; empty for no columns."""
    names = [quote_path(column.split(".")) for column in columns]
    return f" ZORDER BY ({', '.join(names)})" if names else ""
