"""The clean-up: unreferenced data files, strays that were moved aside, and unfinished uploads.

Rules:

1. First the files are listed, then the markers and staged replacements, then the tables' logs. A file only ever moves
   in that direction: a file that gets its marker, or is loaded, during the clean-up is found in a later step.
2. A file is removed only if it is older than the safe age, and not referenced by any marker in the chain (of any stream
   of this stage), any staged replacement, or any version of the table that can still be read (rules.py).
3. Anything unreadable counts as referring to everything: a marker keeps its Kafka partition's files, a log its table's.
   So does a stream of another config that loads the same topics into the table: its stage is not read.
4. Copies of late claims are removed too once they are old, and outboxes that no marker names (rule 7).
   Copies of a rewind stay: writers recognize it by them.
5. Ages are by the store's own clock: the time of an object that was just written.
6. A file is identified by its name, which is unique; any reference to that name excludes it, in any folder.
7. An outbox is removed if it is older than the safe age, and neither a marker of its chain nor the chain's origin names
   it (common/stage/task_files.py, rule 7): it is of a lost claim, or of a chain abandoned after a partial delivery.
   Outboxes are listed before the markers: one that gets its marker in between is younger, and is kept. The origin is
   read after the markers: a rewind writes it before it removes one. A marker that cannot be read, or disappears during
   the check, keeps all outboxes of its chain; so does an origin that cannot be read. A marker that was put aside keeps
   its outboxes while the chain is below its end (common/stage/put_aside.py). An object that is not named like an outbox
   is left alone.
8. On its schedule it runs in the background of the loads, and never makes one fail: an error is logged, and the next
   scheduled time is the next try.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Protocol, TypeVar

from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.errors import KafkaDeltaExpressError, MarkerError, StoreError, TableError
from common.metrics import Metrics
from common.ports import ObjectStore, StoredObject
from common.settings import Settings
from common.settings.values import OFF
from common.spans import Position, TopicPartition
from common.stage.appeared_routes import with_appeared
from common.stage.chain_origins import ChainOrigin, newest_origin
from common.stage.data_files import shortened
from common.stage.markers import DONE, STRAY, Manifest, MarkerName, folder_of, is_late_path, marker_from_bytes
from common.stage.put_aside import outboxes_beyond, put_aside_manifests
from common.stage.replacements import REPLACE
from common.stage.task_files import OUTBOX, OutboxName
from common.storage.listing import Upload
from common.storage.store import store_time_ms
from common.tables.files import referenced_files
from common.tables.history import LoggedCommit, read_history, store_lines
from common.tables.log_files import COMMIT, LOG
from delta_loader.maintenance.cleaning.rules import Area, Tally, areas, file_names_in, other_stage, require_safe
from delta_loader.ports import ParallelMap, ScannedStore
from delta_loader.scheduling.schedule import Schedule

Item = TypeVar("Item")
_AT_A_TIME = 1000


class CleanStore(ScannedStore, Protocol):
    def uploads(self, prefix: str) -> Iterator[Upload]:
        """Multipart uploads that were started and not completed."""

    def abort(self, upload: Upload) -> None:
        """Abort an upload; no object is created."""


class Candidates:
    """The files that may be removed, by area (a number), in a temporary database: a million of them cost no memory."""

    def __init__(self) -> None:
        # A file that SQLite creates when its cache is full, and deletes by itself.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("CREATE TABLE files (name, area, path, size, modified, topic, partition)")
        self._database.execute("CREATE INDEX by_name ON files (name)")
        self._database.execute("BEGIN")

    def close(self) -> None:
        self._database.close()

    def add(self, area: int, item: StoredObject, topic: str, partition: int) -> None:
        name = item.path.rpartition("/")[2]
        row = (name, area, item.path, item.size_bytes, item.modified_ms, topic, partition)
        self._database.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def keep(self, names: Iterable[str]) -> None:
        self._database.executemany("DELETE FROM files WHERE name = ?", ((name,) for name in names))

    def keep_partition(self, topic: str, partition: int) -> None:
        """Exclude all files of a chain, whose names have the topic as `shortened` leaves it."""
        self._database.execute("DELETE FROM files WHERE topic = ? AND partition = ?", (shortened(topic), partition))

    def keep_area(self, area: int) -> None:
        self._database.execute("DELETE FROM files WHERE area = ?", (area,))

    def left(self, area: int) -> Iterator[StoredObject]:
        """The unreferenced files, by path."""
        query = "SELECT path, size, modified FROM files WHERE area = ? ORDER BY path"
        for path, size_bytes, modified_ms in self._database.execute(query, (area,)):
            yield StoredObject(path, size_bytes, modified_ms)


class CleanUp:
    """One stage and its streams' tables."""

    def __init__(
        self,
        settings: Settings,
        open_store: Callable[[str], CleanStore],
        parallel: ParallelMap,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._advance = advance
        self._settings = settings
        self._open = cache(open_store)
        self._parallel = parallel
        self._stage = open_store(settings.stage.url)
        self._areas = areas(settings)

    def run(self, older_than_s: float, *, remove: bool) -> tuple[Tally, ...]:
        """List what can be removed, and remove it if ``remove``. Raises UsageError and StoreError."""
        require_safe(self._settings, older_than_s)
        self._areas = areas(with_appeared(self._settings, self._stage))
        before_ms = store_time_ms(self._stage) - int(older_than_s * 1000)
        with closing(Candidates()) as candidates:
            for number, area in enumerate(self._areas):
                self._list(candidates, number, area, before_ms)
            self._keep_staged(candidates)
            failures = [self._keep_loaded(candidates, number, area) for number, area in enumerate(self._areas)]
            tallies = [
                self._files(candidates, number, area, failure, remove=remove)
                for (number, area), failure in zip(enumerate(self._areas), failures, strict=True)
            ]
        uploads = [self._uploads(area, before_ms, remove=remove) for area in self._whole_areas()]
        return (*tallies, self._strays(before_ms, remove=remove), self._outboxes(before_ms, remove=remove), *uploads)

    # List, in the order of rule 1.

    def _list(self, candidates: Candidates, number: int, area: Area, before_ms: int) -> None:
        for item in self._open(area.url).scan(area.folder):
            self._advance(1)
            path = item.path.removeprefix(f"{area.folder}/")
            name = area.file(_below_table(path) if area.folder else path) if item.modified_ms < before_ms else None
            if name is not None:
                partition = name.topic_partition
                candidates.add(number, item, str(partition.topic), int(partition.partition))

    def _keep_staged(self, candidates: Candidates) -> None:
        """Exclude files that markers and staged replacements refer to."""
        for folder in (DONE, REPLACE):
            for batch in _batches(self._stage.list(f"{folder}/")):
                paths = [item.path for item in batch if item.size_bytes]
                for path, data in zip(paths, self._parallel(self._stage.read, paths), strict=True):
                    self._keep_named(candidates, path, data)

    def _keep_named(self, candidates: Candidates, path: str, data: bytes | None) -> None:
        try:
            candidates.keep(file_names_in(data or b""))
        except ValueError:
            parts = path.split("/")
            name = MarkerName.parse(path)
            if name is not None:
                candidates.keep_partition(str(name.topic_partition.topic), int(name.topic_partition.partition))
            elif len(parts) > len((REPLACE, "topic", "partition")) and parts[2].isdigit():
                candidates.keep_partition(parts[1], int(parts[2]))

    def _keep_loaded(self, candidates: Candidates, number: int, area: Area) -> str | None:
        """Exclude files that a table refers to; returns why that cannot be determined, if so (rule 3)."""
        if not area.has_log:
            return None
        store = self._open(area.url)
        try:
            for names in referenced_files(store):
                candidates.keep(names)
            failure = other_stage(area, self._settings, _history(store))
        except (StoreError, TableError) as error:
            failure = error.problem
        if failure is not None:
            candidates.keep_area(number)
        return failure

    # Remove, or only count.

    def _files(self, candidates: Candidates, number: int, area: Area, failure: str | None, *, remove: bool) -> Tally:
        tally = Tally("data files", area.url, failure=failure)
        return self._take(tally, self._open(area.url), candidates.left(number), remove=remove)

    def _strays(self, before_ms: int, *, remove: bool) -> Tally:
        tally = Tally("stray markers", f"{self._stage.url}/{STRAY}")
        old = (item for item in self._stage.scan(STRAY) if item.modified_ms < before_ms and is_late_path(item.path))
        return self._take(tally, self._stage, old, remove=remove)

    def _outboxes(self, before_ms: int, *, remove: bool) -> Tally:
        outboxes = settled_outboxes(self._stage, self._parallel, before_ms)
        return self._take(Tally("outboxes", self._stage.url), self._stage, outboxes, remove=remove)

    def _take(self, tally: Tally, store: CleanStore, items: Iterable[StoredObject], *, remove: bool) -> Tally:
        for batch in _batches(items):
            for item in batch:
                tally = tally.with_file(item.path, item.size_bytes, item.modified_ms)
            if remove:
                self._parallel(lambda item: store.delete([item.path]), batch)
        return tally

    def _whole_areas(self) -> Iterator[tuple[str, str]]:
        yield from ((area.url, area.folder) for area in self._areas if area.has_log)
        yield self._settings.stage.url, ""

    def _uploads(self, area: tuple[str, str], before_ms: int, *, remove: bool) -> Tally:
        url, folder = area
        tally, store = Tally("uploads", url), self._open(url)
        for upload in list(store.uploads(folder)):
            if upload.started_ms < before_ms:
                tally = tally.with_file(upload.path, 0, upload.started_ms)
                if remove:
                    store.abort(upload)
        return tally


def _history(store: CleanStore) -> Iterator[LoggedCommit]:
    matches = (COMMIT.fullmatch(item.path) for item in store.list(LOG))
    newest = max((int(match[1]) for match in matches if match), default=-1)
    return read_history(newest, store_lines(store))


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    several = iter(items)
    while batch := list(islice(several, _AT_A_TIME)):
        yield batch


def _below_table(path: str) -> str:
    """A file's path relative to its table, from its path below the stage's ``data/``."""
    return path.partition("/")[2]


def settled_outboxes(stage: ScannedStore, parallel: ParallelMap, before_ms: int) -> list[StoredObject]:
    """The outboxes that may be removed. Raises StoreError."""
    by_chain: dict[TopicPartition, list[StoredObject]] = {}
    for item in stage.scan(OUTBOX):
        name = OutboxName.parse(item.path) if item.modified_ms < before_ms else None
        if name is not None:
            by_chain.setdefault(name.partition, []).append(item)
    left: list[StoredObject] = []
    for partition, files in by_chain.items():
        named = _named(stage, parallel, partition)
        if named is not None:
            left += [item for item in files if item.path not in named]
    return left


def _named(stage: ObjectStore, parallel: ParallelMap, partition: TopicPartition) -> set[str] | None:
    """The outboxes of a chain that are still referred to; None if one of its markers cannot be read (rule 7)."""
    paths = [item.path for item in stage.list(folder_of(partition))]
    manifests: list[Manifest] = []
    try:
        for path, data in zip(paths, parallel(stage.read, paths), strict=True):
            name = MarkerName.parse(path)
            if name is None or data is None:
                return None
            manifest = marker_from_bytes(name, data).manifest
            manifests += [] if manifest is None else [manifest]
        origin = newest_origin(stage, partition) or ChainOrigin(Position(0))
    except MarkerError:
        return None
    end = max((manifest.span.end for manifest in manifests), default=origin.position)
    generation = max([origin.generation, *(manifest.generation for manifest in manifests)])
    named = {path for manifest in manifests for path in manifest.outboxes}
    return named.union(origin.outboxes, outboxes_beyond(put_aside_manifests(stage, partition), end, generation))


class ScheduledCleanUp:
    def __init__(self, settings: Settings, work: CleanUp, log: FilteringBoundLogger, metrics: Metrics) -> None:
        """Raises UsageError for an age that is not safe."""
        self._older_than_s = settings.loader.clean_up_older_than_s
        self._schedule = None if settings.loader.clean_up == OFF else Schedule(settings.loader.clean_up)
        if self._schedule is not None:
            require_safe(settings, self._older_than_s)
        self._work = work
        self._log = log
        self._metrics = metrics
        self._due: datetime | None = None

    def run_due(self, now: datetime) -> None:
        """Clean up if it is due; the first time is one interval after the start."""
        if self._schedule is None:
            return
        if self._due is None:
            self._due = self._schedule.next_after(now, now)
        if now < self._due:
            return
        self._due = self._schedule.next_after(now, now)
        try:
            tallies = self._work.run(self._older_than_s, remove=True)
        except KafkaDeltaExpressError as error:
            self._log.error("clean-up failed", problem=error.problem, remedy=error.remedy)
            return
        for tally in tallies:
            if tally.failure is not None:
                self._log.error("not cleaned up", url=tally.url, problem=tally.failure)
            elif tally.count:
                self._metrics.add(all_metrics.LOADER_CLEANED, tally.count, what=tally.what.replace(" ", "_"))
                self._log.info(
                    "cleaned up", url=tally.url, what=tally.what, count=tally.count, size_bytes=tally.size_bytes
                )
