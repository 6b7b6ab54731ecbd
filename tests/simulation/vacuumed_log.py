"""Delta tables whose log is in the store too, with OPTIMIZE, VACUUM, RESTORE and REPLACE by other programs.

Files that a commit took out of the table stay until a VACUUM finds them older than the table's retention. It lists them
first and deletes them later, one by one, as Delta's does.
"""

import json
from collections.abc import Iterator

from common.stage.data_files import delta_path
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import Committed, TableCommit
from delta_loader.tables.vacuum import RETENTION, retention_s
from tests.simulation.delta_log import Place
from tests.simulation.shared_log import Entry, SharedLog
from tests.simulation.store import Bucket
from tests.simulation.world import World

OPTIMIZED, REPLACED = "OPTIMIZE", "CREATE OR REPLACE TABLE AS SELECT"


class VacuumedLog(SharedLog):
    """The tables of a world in which others maintain them."""

    def __init__(self, world: World, bucket: Bucket, stage_url: str) -> None:
        super().__init__(world, bucket, stage_url)
        self._taken_out_ms: dict[str, dict[str, int]] = {}
        """By table, the files that it had, and when it had them last."""
        self.retention = "interval 2 days"

    # A loader's view.

    def create(self, url: str, shape: TableShape) -> None:
        is_new = url not in self.tables
        super().create(url, shape)
        if is_new:
            self.tables[url].properties[RETENTION] = self.retention
            self._write(url)

    def _done(self, commit: TableCommit) -> Committed:
        done = super()._done(commit)
        self._write(commit.target.url)
        return done

    # Other programs.

    def restore(self, url: str, version: int) -> None:
        self._takes_out(url)
        super().restore(url, version)
        self._write(url)

    def commit_of_others(self, url: str, count: int) -> None:
        super().commit_of_others(url, count)
        self._write(url)

    def optimize(self, url: str) -> None:
        """All rows of the table are in one new file."""
        self._takes_out(url)
        self._logs[url].entries.append(Entry(OPTIMIZED, self.world.now_ms, self.version(url)))
        self._write(url)

    def replace(self, url: str) -> None:
        """The table gets other rows and another id, and keeps its txn actions."""
        self._takes_out(url)
        self._logs[url].entries.append(Entry(REPLACED, self.world.now_ms, self.version(url)))
        self.tables[url].table_id += "-replaced"
        self._write(url)

    def restorable(self, url: str) -> range:
        """The versions whose files all exist, from some version on."""
        newest = self.version(url)
        known = range(newest)
        lacking = [version for version in known if any(not self._has(url, path) for path in self.files(url, version))]
        replaced = [version for version in known if self._logs[url].entries[version].operation == REPLACED]
        return range(max([*lacking, *replaced], default=-1) + 1, newest)

    def vacuumable(self, url: str) -> list[str]:
        """The files below a table that its VACUUM deletes now, by their full paths."""
        kept_s = retention_s(self.tables[url].properties)
        assert kept_s is not None
        before_ms = self.world.now_ms - int(kept_s * 1000)
        live, out_ms = set(self.files(url)), self._taken_out_ms.get(url, {})
        files = (path for path in self._bucket.objects if path.startswith(f"{url}/") and path.endswith(".parquet"))
        return [
            path
            for path in files
            if self._bucket.objects[path][1] < before_ms and path.removeprefix(f"{url}/") not in live
            if out_ms.get(path.removeprefix(f"{url}/"), 0) < before_ms
        ]

    def files(self, url: str, version: int | None = None) -> Iterator[str]:
        for entry in self._line(url, version):
            if entry.operation == OPTIMIZED:
                return
            if entry.commit is not None:
                yield from (file.path for file in entry.commit.files)

    def lost(self) -> set[Place]:
        """The records of which some table had rows that it no longer has."""
        return {place for url, ever in self.ever.items() for place in ever.difference(self.places(url))}

    # Internals.

    def _takes_out(self, url: str) -> None:
        self._taken_out_ms.setdefault(url, {}).update(dict.fromkeys(self.files(url), self.world.now_ms))

    def _has(self, url: str, path: str) -> bool:
        return f"{url}/{path}" in self._bucket.objects

    def _line(self, url: str, version: int | None = None) -> Iterator[Entry]:
        for entry in super()._line(url, version):
            yield entry
            if entry.operation == REPLACED:
                return

    def _write(self, url: str) -> None:
        """The log's files, for readers without a JVM."""
        for version, entry in enumerate(self._logs[url].entries):
            path = f"{url}/_delta_log/{version:020d}.json"
            if path not in self._bucket.objects:
                lines = "\n".join(json.dumps(action) for action in _actions(entry))
                self._bucket.objects[path] = (lines.encode(), self.world.now_ms)


def _actions(entry: Entry) -> Iterator[dict[str, object]]:
    commit = entry.commit
    info: dict[str, object] = {"timestamp": entry.timestamp_ms, "operation": entry.operation}
    if entry.read_version is not None:
        info["readVersion"] = entry.read_version
    if entry.restored is not None:
        info["operationParameters"] = {"version": entry.restored}
    if commit is not None:
        info["userMetadata"] = commit.metadata.to_json()
    yield {"commitInfo": info}
    for file in () if commit is None else commit.files:
        yield {"add": {"path": delta_path(file.path)}}
