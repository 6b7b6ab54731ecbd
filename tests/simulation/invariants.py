"""Invariants of the stage and of the txn actions after every step of a history, regardless of its final rows.

Rules:

1. A name is claimed once: an existing marker or data file is never overwritten with other bytes. Only a rewind replaces
   a marker, and only when its copy is below ``stray/``.
2. A marker's data files exist when it is claimed; they may be gone where the same claim was made, and settled, before.
3. A marker's links hold: one that names a marker before it begins where some marker of that name ended.
4. A stray is never continued: where markers lay above a claim when it was made, and still do, none follows it. (Those
   that a later rewind leaves out do not count: it has not put them aside yet. A marker that was the chain's end when it
   was made, was put aside, and is made again by a duplicated request may be followed by a claim that was already in
   progress and was planned while it was the end. A request that was sent before the marker was made was not planned on
   it, too.)
5. A marker is deleted only when its copy is below ``stray/``, or when every table that it has files for, and its own,
   has its span, no marker below it is left, and one above it is, or the chain's origin is recorded, as by a rewind that
   takes the one above it. A writer withdraws its own claim only when the marker before it was put aside. (A request
   that arrives late may meet a marker that was claimed since: the chain is held at a gap then.)
6. A file that a table has, or that a marker names which its table lacks, is never deleted.
7. A txn action only rises, except by a commit that carries out an operator's resolution; it rises by the commit's
   spans.

They are checked where objects and commits change, so a history ends at the step that broke one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from common.errors import MarkerError
from common.settings import Stream
from common.spans import Position, TopicPartition
from common.stage.chain_origins import BEGIN, ChainOrigin, is_superseded, newest_paths, origin_from_bytes
from common.stage.markers import STRAY, Marker, MarkerName, Origin, StagedTable, marker_from_bytes, stray_path
from common.stage.merged import is_merged
from common.tables.transactions import TxnIds
from common.tables.urls import comparable
from delta_loader.tables.commits import TableCommit
from tests.fakes.delta_tables import MemoryTable

Objects = dict[str, tuple[bytes, int]]


@dataclass(slots=True)
class _Claim:
    """An existing marker, and what lay above it when it was claimed."""

    marker: Marker
    above: tuple[_Claim, ...]
    was_last: bool = False
    """Whether it exists again, and was the last marker when it was made."""


@dataclass(slots=True)
class StageInvariants:
    """Watches one world's objects and tables; violations are in ``problems``."""

    stage: str
    """The stage's URL."""
    stream: Stream
    tables: Callable[[], Mapping[str, MemoryTable]]
    problems: list[str] = field(default_factory=list)
    is_given_up: Callable[[TopicPartition, int], bool] = lambda _source, _offset: False
    """Whether a record may be missing: an operator gave it up, or Kafka lost it before a chain began."""
    is_late: Callable[[], bool] = lambda: False
    """Whether the request that changes an object now was sent long before."""
    sent_ms: Callable[[], int] = lambda: 0
    """When that request was sent."""
    _claims: dict[TopicPartition, dict[Position, _Claim]] = field(default_factory=dict)
    _ends: dict[tuple[MarkerName, int], set[Position]] = field(default_factory=dict)
    _seen: dict[bytes, bool] = field(default_factory=dict)
    """The markers that writers have claimed, and whether each was the last one when it was made."""
    _named: dict[str, MarkerName] = field(default_factory=dict)
    """The marker that names a data file, by the file's full path."""

    def put(self, objects: Objects, path: str, data: bytes) -> None:
        before = objects.get(path)
        name = self._name(path)
        if before is not None and before[0] != data and (name is not None or path.endswith(".parquet")):
            replaced = name is not None and self._is_put_aside(objects, path, before[0])
            if not replaced:
                self.problems.append(f"{path} is written over with other bytes (rule 1)")
        if name is None or (before is not None and before[0] == data):
            return
        try:
            marker = marker_from_bytes(name, data)
        except MarkerError:
            return
        self._claimed(objects, marker, data)

    def delete(self, objects: Objects, path: str, process: str, *, is_late: bool) -> None:
        """An object is about to be deleted; ``is_late`` where its sender no longer waits for the answer."""
        stored = objects.get(path)
        if stored is None:
            return
        if path.endswith(".parquet"):
            self._file_goes(path)
            return
        name = self._name(path)
        if name is None:
            return
        if not is_late:
            self._require_reason(objects, name, stored[0], process)
        claims = self._claims.get(name.topic_partition, {})
        if name.start in claims:
            del claims[name.start]

    def committed(self, table: MemoryTable, commit: TableCommit) -> None:
        if commit.is_resolution:
            return
        for app_id, last in commit.advances.items():
            if ":" in app_id:
                continue  # what a secondary table still lacks, which is no position
            before = table.transactions.get(app_id, -1)
            if last <= before:
                self.problems.append(f"{app_id} moves from {before} to {last} in {commit.target.url} (rule 7)")

    # Markers.

    def _claimed(self, objects: Objects, marker: Marker, data: bytes) -> None:
        partition, manifest = marker.name.topic_partition, marker.manifest
        claims = self._claims.setdefault(partition, {})
        if manifest is not None:
            if data not in self._seen:
                self._require_files(objects, marker)
            self._require_link(objects, marker, claims)
        origin = newest(objects, self.stage, partition)
        above = tuple(
            other
            for start, other in claims.items()
            if start > marker.name.start and _generation(other.marker) >= _generation(marker)
            if not is_superseded(other.marker, origin)  # by a rewind that has not put it aside yet
        )
        claims[marker.name.start] = _Claim(marker, above, self._seen.get(data, False))
        if manifest is not None:
            self._seen.setdefault(data, not above)
        self._ends.setdefault((marker.name, _generation(marker)), set()).add(marker.span.end)

    def _require_files(self, objects: Objects, marker: Marker) -> None:
        for path in self._paths(marker):
            self._named[path] = marker.name
            if path not in objects:
                self.problems.append(f"{marker.name.path} names {path}, which is not there (rule 2)")

    def _require_link(self, objects: Objects, marker: Marker, claims: Mapping[Position, _Claim]) -> None:
        manifest = marker.manifest
        if manifest is None or manifest.previous is None:
            return
        before = MarkerName(marker.name.topic_partition, manifest.previous)
        ends = self._ends.get((before, manifest.generation), set()) | self._ends.get((before, 0), set())
        if marker.span.start not in ends:
            self.problems.append(
                f"{marker.name.path} names {before.path} before it, which never ended at {marker.span.start} (rule 3)"
            )
        claim = claims.get(manifest.previous)
        if claim is None or claim.marker.span.end != marker.span.start or claim.marker.manifest is None:
            return
        is_older = self.sent_ms() <= objects[f"{self.stage}/{before.path}"][1]
        if claim.was_last or is_older or manifest.origin is not Origin.FLUSH:
            return  # an operator fills the gap above it, or begins there again
        origin = newest(objects, self.stage, marker.name.topic_partition)
        if any(
            claims.get(other.marker.name.start) is other and not is_superseded(other.marker, origin)
            for other in claim.above
        ):
            self.problems.append(f"{marker.name.path} continues {before.path}, a stray (rule 4)")

    def _require_reason(self, objects: Objects, name: MarkerName, data: bytes, process: str) -> None:
        if process.startswith("writer"):
            self._withdrawn(objects, name, data)
        elif not self._is_put_aside(objects, f"{self.stage}/{name.path}", data):
            self._settled(objects, name, data)

    def _withdrawn(self, objects: Objects, name: MarkerName, data: bytes) -> None:
        previous = marker_from_bytes(name, data).previous
        path = None if previous is None else f"{self.stage}/{STRAY}/{MarkerName(name.topic_partition, previous).path}"
        if path is None or not any(other.startswith(path) for other in objects):
            self.problems.append(f"{name.path} is withdrawn, and nothing before it was put aside (rule 5)")

    def _settled(self, objects: Objects, name: MarkerName, data: bytes) -> None:
        marker = marker_from_bytes(name, data)
        partition = name.topic_partition
        claims = self._claims.get(partition, {})
        lower = [
            start
            for start, other in claims.items()
            if start < name.start and _same(other.marker, marker) and not other.above  # no claim that arrived late
        ]
        if lower:
            self.problems.append(f"{name.path} is settled before {MarkerName(partition, min(lower)).path} (rule 5)")
        if not any(start > name.start for start in claims) and newest(objects, self.stage, partition) is None:
            self.problems.append(f"{name.path}, the last marker, is settled (rule 5)")
        for url in self._lacking(marker):
            self.problems.append(f"{name.path} is settled, and {url} does not have it (rule 5)")

    def _lacking(self, marker: Marker) -> list[str]:
        """Those of its own table, and the tables that it has files for, that lack its span in its generation or a later
        one."""
        partition = marker.name.topic_partition
        ids = TxnIds(self.stream.app_id, self.stream.several_topics)
        newest = ids.generation(self._transactions(self.stream.table), partition)
        generation = _generation(marker)
        if marker.manifest is not None and newest > generation:
            return []  # of a topic that is gone
        txn_ids = TxnIds(self.stream.app_id, self.stream.several_topics, {partition: max(newest, generation)})
        urls = dict.fromkeys([self.stream.table, *(self._url(table) for table in marker.tables if table.files)])
        places = {url: txn_ids.position(self._transactions(url), partition) for url in urls}
        return [
            url
            for url, place in places.items()
            if not (is_merged(partition.topic) and place is not None) and (place or 0) < self._end_in(url, marker)
        ]

    def _end_in(self, url: str, marker: Marker) -> int:
        """The position of a table that has a marker: after its last row there, in a secondary table.

        A marker staged again may reach further than before, with rows for a secondary table that has all of them, or
        with rows of records that an operator had given up.
        """
        files = [file for table in marker.tables if self._url(table) == url for file in table.files]
        bounds = [json.loads(file.statistics) for file in files]
        highest = [bounds_of_file.get("maxValues", {}).get("_kafka_offset") for bounds_of_file in bounds]
        if url == self.stream.table or None in highest:
            return marker.span.end
        low, end = min(bounds_of_file["minValues"]["_kafka_offset"] for bounds_of_file in bounds), int(max(highest)) + 1
        while end > low and self.is_given_up(marker.name.topic_partition, end - 1):
            end -= 1
        return end if end > low else 0

    def _transactions(self, url: str) -> Mapping[str, int]:
        table = self.tables().get(url)
        return {} if table is None else table.transactions

    def _url(self, table: StagedTable) -> str:
        return next((url for url in self.stream.tables if comparable(url) == comparable(table.url)), table.url)

    def _file_goes(self, path: str) -> None:
        name = self._named.get(path)
        if name is None:
            return
        if any(path in (f"{url}/{path}" for path in table.paths) for url, table in self.tables().items()):
            self.problems.append(f"{path} is deleted, and a table has it (rule 6)")
        claim = self._claims.get(name.topic_partition, {}).get(name.start)
        if claim is not None and path in self._paths(claim.marker) and self._lacking(claim.marker):
            self.problems.append(f"{path} is deleted, and {name.path}, which is not loaded, names it (rule 6)")

    # Names.

    def _paths(self, marker: Marker) -> Iterator[str]:
        for table in marker.tables:
            for file in table.files:
                yield f"{self.stage if file.is_mixed else self._url(table)}/{file.path}"

    def _name(self, path: str) -> MarkerName | None:
        below = path.removeprefix(f"{self.stage}/")
        return None if below == path or below.startswith(f"{STRAY}/") else MarkerName.parse(below)

    def _is_put_aside(self, objects: Objects, path: str, data: bytes) -> bool:
        """Whether there is a copy of all of it, or of the half that was left when it was copied (hostile.py)."""
        below = path.removeprefix(f"{self.stage}/")
        start = f"{self.stage}/{stray_path(below)}"
        copies = (copy for other, (copy, _) in objects.items() if other.startswith(start))
        return any(copy in {data, data[: len(data) // 2]} for copy in copies)


def _generation(marker: Marker) -> int:
    return 0 if marker.manifest is None else marker.manifest.generation


def _same(first: Marker, other: Marker) -> bool:
    """Whether both are of one generation; a marker made by hand is of any."""
    return first.manifest is None or other.manifest is None or _generation(first) == _generation(other)


def newest(objects: Objects, stage: str, partition: TopicPartition) -> ChainOrigin | None:
    path = newest_paths(_origins(objects, stage)).get(partition)
    return None if path is None else origin_from_bytes(path, objects[f"{stage}/{path}"][0])


def first_origin(objects: Objects, stage: str, path: str, data: bytes) -> tuple[TopicPartition, int] | None:
    """The chain of an object that is about to be its first origin, and the position there."""
    partition = next(iter(newest_paths(_origins([path], stage))), None)
    if partition is None or partition in newest_paths(_origins(objects, stage)):
        return None
    return partition, int(origin_from_bytes(path.removeprefix(f"{stage}/"), data).position)


def _origins(paths: Iterable[str], stage: str) -> Iterator[str]:
    folder, skip = f"{stage}/{BEGIN}/", len(stage) + 1
    return (path[skip:] for path in paths if path.startswith(folder))
