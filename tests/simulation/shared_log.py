"""Delta tables that others use too: foreign commits, RESTORE, a log that is cleaned, txn actions that expire.

The check at each commit needs no position: no row comes a second time while the table still has it, under one app_id,
out of one stage, or out of one data file.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from common.spans import TopicPartition
from common.tables.history import LoggedCommit
from common.tables.state import TableState
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import CommitOutcome, Committed, Conflicted, TableCommit
from tests.simulation.delta_log import DeltaLog, Place, places_of
from tests.simulation.store import Bucket
from tests.simulation.world import World

_SKEW_MS = 3_600_000
"""How far clocks may differ."""


@dataclass(frozen=True, slots=True)
class Entry:
    operation: str
    timestamp_ms: int
    read_version: int | None = None
    commit: TableCommit | None = None
    restored: int | None = None
    loaded: tuple[Place, ...] = ()
    stage: str | None = None
    """The data files that its rows were loaded from."""


@dataclass(slots=True)
class _Log:
    """What one table has in addition to `MemoryTable`."""

    entries: list[Entry]
    oldest: int = 0
    """The oldest version that its log still has."""
    moved_ms: dict[str, int] = field(default_factory=dict)
    """When each txn action changed last."""


class SharedLog(DeltaLog):
    def __init__(self, world: World, bucket: Bucket, stage_url: str) -> None:
        super().__init__(bucket, stage_url)
        self.world = world
        self._logs: dict[str, _Log] = {}
        self._read = 0
        """The version at which the transaction that commits now began."""
        self.first_ms: Callable[[str, TopicPartition], int] = lambda _stage, _source: 0
        """When the first marker of a Kafka partition was made in a stage."""
        self.forgotten: set[tuple[str, str, TopicPartition]] = set()
        self.stage_of: Callable[[str], str | None] = lambda _path: None
        """The stage that a data file was staged in."""
        self.problems: list[str] = []
        self.ever: dict[str, set[Place]] = {}
        """By table, the rows that it has had."""

    # A loader's view.

    def state(self, url: str) -> TableState | None:
        state = super().state(url)
        return None if state is None else replace(state, version=self.version(url))

    def version(self, url: str) -> int:
        return len(self._logs[url].entries) - 1

    def create(self, url: str, shape: TableShape) -> None:
        if url not in self.tables:
            self._logs[url] = _Log([Entry("CREATE TABLE", self.world.now_ms)])
        super().create(url, shape)

    def history(self, url: str, newest: int) -> Iterator[LoggedCommit]:
        log = self._logs[url]
        for version in range(newest, log.oldest - 1, -1):
            entry = log.entries[version]
            metadata = None if entry.commit is None else entry.commit.metadata
            yield LoggedCommit(
                version, entry.operation, entry.restored, entry.read_version, entry.timestamp_ms, "", metadata
            )

    def changed(self, commit: TableCommit) -> CommitOutcome | None:
        """Also a RESTORE since the table was read, except one after the transaction began."""
        entries, looked_at = self._logs[commit.target.url].entries, commit.target.version or 0
        self._read = self.world.rng.choice([len(entries) - 1, self.world.rng.randint(looked_at, len(entries) - 1)])
        if not commit.is_resolution and any(
            entry.restored is not None for entry in entries[looked_at + 1 : self._read + 1]
        ):
            return Conflicted("the table was put back")
        return super().changed(commit)

    def _done(self, commit: TableCommit) -> Committed:
        url, read = commit.target.url, self._read
        log = self._logs[url]
        loaded = tuple(self._loaded(commit))
        self._require_new(commit, loaded)
        log.entries.append(
            Entry("STREAMING UPDATE", self.world.now_ms, read, commit, loaded=loaded, stage=self._stage_of(commit))
        )
        log.moved_ms |= dict.fromkeys(commit.advances, self.world.now_ms)
        self.ever.setdefault(url, set()).update(loaded)
        return super()._done(commit)

    def _loaded(self, commit: TableCommit) -> Iterator[Place]:
        for file in commit.files:
            yield from self.places_in(f"{commit.target.url}/{file.path}")
        for write in commit.written:
            yield from places_of(self.rows_of(write))

    def _require_new(self, commit: TableCommit, loaded: tuple[Place, ...]) -> None:
        url = commit.target.url
        stage = self._stage_of(commit)
        live = [entry for entry in self._line(url) if entry.commit is not None]
        of_one = (
            entry
            for entry in live
            if entry.commit and (entry.commit.app_id == commit.app_id or entry.stage == stage is not None)
        )
        own = {place for entry in of_one for place in entry.loaded}
        partitions = [partition for partition in commit.metadata.spans if stage is not None]
        if any(
            self.forgot(url, commit.app_id, partition, self.first_ms(str(stage), partition)) for partition in partitions
        ):
            return
        again = sorted(own.intersection(loaded)) or [place for place, count in Counter(loaded).items() if count > 1]
        if again:
            self.problems.append(f"{url} gets {again[0]} a second time from {commit.app_id}, and {len(again) - 1} more")
        paths = {file.path for entry in live if entry.commit for file in entry.commit.files}
        twice = sorted(file.path for file in commit.files if file.path in paths)
        if twice:
            self.problems.append(f"{url} gets the file {twice[0]} a second time")

    def _stage_of(self, commit: TableCommit) -> str | None:
        paths = (f"{commit.target.url}/{file.path}" for file in commit.files)
        return next((stage for path in paths if (stage := self.stage_of(path)) is not None), None)

    def forgot(self, url: str, app_id: str, partition: TopicPartition, staged_ms: int) -> bool:
        """Whether a stage that began after all that a table's log still has was judged by a position alone, or by none.

        With no commit of the stream left, it cannot be distinguished from that of a new stream, or of one that another
        program has loaded (docs/internals/guarantees.md, G5). ``staged_ms`` is when the stage's first marker was made.
        """
        url = url.removesuffix("_dead_letters")
        key, log = (url, app_id, partition), self._logs.get(url)
        if log is not None and log.oldest and key not in self.forgotten:
            entries = log.entries[log.oldest :]
            is_known = any(entry.commit is not None and entry.commit.app_id == app_id for entry in entries)
            if not is_known and staged_ms > entries[0].timestamp_ms + _SKEW_MS:
                self.forgotten.add(key)
        return key in self.forgotten

    # The final check's view.

    def places(self, url: str) -> Iterator[Place]:
        """The origin of each row that a table has now."""
        for entry in self._line(url):
            yield from entry.loaded

    def _line(self, url: str, version: int | None = None) -> Iterator[Entry]:
        """The versions whose rows a table has, now or at a version, newest first."""
        entries = self._logs[url].entries if url in self._logs else []
        version = len(entries) - 1 if version is None else version
        while version >= 0:
            entry = entries[version]
            yield entry
            version = version - 1 if entry.restored is None else entry.restored

    # What others do.

    def commit_of_others(self, url: str, count: int) -> None:
        """Rows of another program."""
        entry = Entry("WRITE", self.world.now_ms, self.version(url))
        self._logs[url].entries += [replace(entry, read_version=self.version(url) + more) for more in range(count)]

    def restore(self, url: str, version: int) -> None:
        """A RESTORE to a version; txn actions stay."""
        entry = Entry("RESTORE", self.world.now_ms, self.version(url), restored=version)
        self._logs[url].entries.append(entry)

    def lost_by_restore(self, url: str, version: int) -> Iterator[Entry]:
        """The versions whose rows a table has now, and not at a version."""
        left = list(self._line(url, version))
        yield from (entry for entry in self._line(url) if not any(entry is kept_entry for kept_entry in left))

    def restorable(self, url: str) -> range:
        return range(self._logs[url].oldest, self.version(url))

    def clean(self, url: str, before_ms: int) -> None:
        """The log loses older commits, as its retention says; the newest stays, and of dead letters all of this
        product's own.

        (G5 relies on it: a dead-letter table has the last own commit in its log.)
        """
        log = self._logs[url]
        owned = [version for version, entry in enumerate(log.entries) if entry.commit is not None]
        last = min([self.version(url), *(owned if url.endswith("_dead_letters") else ())])
        while log.oldest < last and log.entries[log.oldest].timestamp_ms < before_ms:
            log.oldest += 1

    def expire(self, url: str, before_ms: int) -> int:
        """Older txn actions are gone; returns how many."""
        log, table = self._logs[url], self.tables[url]
        gone = [name for name in table.transactions if log.moved_ms[name] < before_ms]
        for name in gone:
            del table.transactions[name]
        return len(gone)
