"""The output of ``delta-loader explain``, for people and for machines. JSON keys are only ever added."""

from collections.abc import Iterator

from common.json_value import Json
from common.printable import joined
from common.remedies import CONFIG, quoted
from common.sizes import counted, time_text
from common.tables.commit_metadata import CommitMetadata
from common.tables.counts import Counts
from common.tables.history import LoggedCommit
from delta_loader.inspect.explain.offsets import Holder, LoadedRange, OffsetLocation, OffsetReport
from delta_loader.inspect.explain.versions import VersionReport
from delta_loader.tables.history import TableVersion

_SHOWN = 10


def version_to_text(story: VersionReport) -> str:
    return joined(_version_lines(story))


def _version_lines(story: VersionReport) -> Iterator[str]:
    version = story.version
    if version is None:
        yield (
            f"version {story.number} of {story.url} is no longer known: the log begins with version {story.oldest} "
            "(delta.logRetentionDuration)"
        )
        return
    when = "" if version.timestamp_ms is None else f" at {time_text(version.timestamp_ms)}"
    yield f"version {story.number} of {story.url}: {version.words}{when}" + (
        f" by {version.author}" * bool(version.author)
    )
    metadata = version.metadata
    if metadata is None:
        yield f"  not a load: it {_others_words(version)}"
    else:
        yield from _load_lines(metadata)
    rows = "an unknown number of rows" if version.added_rows is None else counted(version.added_rows, "row")
    yield f"  {counted(len(version.added), 'file')} added with {rows}, {len(version.removed):,} removed"
    for file in version.added[:_SHOWN]:
        yield f"    {file.path} ({'?' if file.rows is None else f'{file.rows:,}'} rows, {file.size_bytes:,} bytes)"
    if len(version.added) > _SHOWN:
        yield f"    and {len(version.added) - _SHOWN:,} more"
    for name, is_there in list(story.markers.items())[:_SHOWN]:
        yield f"  from the flush {name.path} ({'its marker still exists' if is_there else 'settled'})"
    if len(story.markers) > _SHOWN:
        yield f"  and from {len(story.markers) - _SHOWN:,} more flushes"
    for gone in story.gone:
        fate = "rewritten with the same rows" if gone.keeps_rows else "removed or rewritten"
        yield f"  {counted(gone.files, 'file')} of these {fate} by version {gone.version} ({gone.words})"
    if version.added:
        yield f"  {counted(story.live_files, 'file')} of these still in the table (version {story.newest})"


def _others_words(version: TableVersion) -> str:
    """The description of a commit by another program or by the table services."""
    if not version.added and not version.removed:
        return "changed no files"
    kind = "changed rows" if version.changes_data else "changed no rows, only their files"
    return f"{kind}: {counted(len(version.removed), 'file')} removed, {len(version.added):,} added"


def _load_lines(metadata: CommitMetadata) -> Iterator[str]:
    yield f"  load {metadata.commit_id} of stream {metadata.app_id}"
    for partition, span in sorted(metadata.spans.items()):
        generation = metadata.generation(partition)
        topic = f", generation {generation} of the topic" if generation else ""
        counts = metadata.counts.get(partition)
        yield f"  {partition} {span}{topic}" + ("" if counts is None else f": {_counts_words(counts)}")
    for partition, replaced in sorted(metadata.replaced.items()):
        counts_words = _counts_words(replaced.counts)
        yield f"  rewrote {partition} {replaced.words} for the request {replaced.request}: {counts_words}"
    if metadata.answers is not None:
        yield f"  applies the resolution of version {metadata.answers.version}: {metadata.answers.decision.value}"
    if metadata.valid_through_ms is not None:
        yield f"  the table is complete through {time_text(metadata.valid_through_ms)}"


def _counts_words(counts: Counts) -> str:
    parts = [counted(counts.records, "record"), counted(counts.rows, "row")]
    if counts.here is not None:
        parts.append(f"{counts.here:,} of them here")
    fields = (
        (counts.dead_letters, counted(counts.dead_letters, "dead letter")),
        (counts.tombstones, counted(counts.tombstones, "tombstone")),
        (counts.filtered, f"{counts.filtered:,} filtered"),
        (counts.exploded, f"{counts.exploded:,} more by explode"),
    )
    parts += [words for count, words in fields if count]
    parts += [f"{span} given up" for span in counts.given_up]
    return ", ".join(parts)


def version_to_json(story: VersionReport) -> Json:
    version = story.version
    record: dict[str, Json] = {
        "table": story.url,
        "version": story.number,
        "newest_version": story.newest,
        "oldest_version": story.oldest,
        "known": version is not None,
    }
    if version is None:
        return record
    fields: dict[str, Json] = {
        "operation": version.operation or "unknown",
        "at_ms": version.timestamp_ms,
        "author": version.author or None,
        "changes_data": version.changes_data,
        "load": None if version.metadata is None else _load_json(version.metadata),
        "rows_added": version.added_rows,
        "files_added": [{"path": file.path, "rows": file.rows, "bytes": file.size_bytes} for file in version.added],
        "files_removed": [file.path for file in version.removed],
        "markers": [{"path": name.path, "settled": not there} for name, there in story.markers.items()],
        "gone": [
            {"version": gone.version, "operation": gone.words, "files": gone.files, "keeps_rows": gone.keeps_rows}
            for gone in story.gone
        ],
        "live_files": story.live_files,
    }
    return {**record, **fields}


def _load_json(metadata: CommitMetadata) -> Json:
    return {
        "commit_id": metadata.commit_id,
        "app_id": metadata.app_id,
        "valid_through_ms": metadata.valid_through_ms,
        "spans": [
            {
                **partition.to_json(),
                "start": int(span.start),
                "end": int(span.end),
                "generation": metadata.generation(partition),
                "counts": _counts_json(metadata.counts.get(partition)),
            }
            for partition, span in sorted(metadata.spans.items())
        ],
        "replaced": [
            {
                **partition.to_json(),
                "start": int(replaced.span.start),
                "end": int(replaced.span.end),
                "request": replaced.request,
            }
            for partition, replaced in sorted(metadata.replaced.items())
        ],
    }


def _counts_json(counts: Counts | None) -> Json:
    if counts is None:
        return None
    return {
        "records": counts.records,
        "rows": counts.rows,
        "rows_here": counts.rows_here,
        "dead_letters": counts.dead_letters,
        "tombstones": counts.tombstones,
        "filtered": counts.filtered,
        "exploded": counts.exploded,
        "given_up": [[int(span.start), int(span.end)] for span in counts.given_up],
    }


def offset_to_text(story: OffsetReport) -> str:
    query = story.query
    lines = [f"{query.partition} offset {query.offset} of stream {query.app_id}: {_verdict(story)}"]
    commit = story.loaded.commit
    if commit is not None and commit.metadata is not None:
        lines.append(f"  {_commit_words(commit)} loaded {query.partition} {commit.metadata.spans[query.partition]}")
        lines.append(f"  more: delta-loader explain {CONFIG} --version {commit.version} --table {quoted(story.table)}")
    if story.loaded.replaced is not None:
        lines.append(f"  {_commit_words(story.loaded.replaced)} rewrote its rows (stage-writer replay)")
    if commit is None and story.is_done and not story.loaded.is_whole and story.place is not OffsetLocation.TAKEN_BACK:
        oldest = story.loaded.oldest_version
        lines.append(f"  which version loaded it is no longer known: the log begins with version {oldest}")
    lines += [f"  {_holder_words(holder)}" for holder in story.holders if holder.rows != 0]
    lines += [f"  {url} still lacks its rows, and gets them before anything later" for url in story.lacked_by]
    return joined([*lines, *(f"  {line}" for line in _to_come_lines(story))])


def _verdict(story: OffsetReport) -> str:  # noqa: PLR0911 - one for each case
    match story.place:
        case OffsetLocation.ROW:
            rows = sum(holder.rows or 0 for holder in story.holders if not holder.is_dead_letters)
            return "its row is in the table" if rows == 1 else f"its {rows:,} rows are in the table"
        case OffsetLocation.NO_ROW:
            return f"it is loaded, and has no row: {_why_no_row(story)}"
        case OffsetLocation.TAKEN_BACK:
            return _taken_back(story.loaded)
        case OffsetLocation.OLDER_TOPIC:
            older = story.loaded.older
            version = "" if older is None else f" by version {older.version}"
            return f"it belongs to an older topic of that name, whose record at this offset was loaded{version}"
        case OffsetLocation.BEFORE_BEGINNING:
            start = "" if story.loaded.has_origin_at is None else f", {story.loaded.has_origin_at}"
            return f"it lies before the first position that this stream loads{start}"
        case OffsetLocation.FORGOTTEN:
            return f"it is loaded, because the table's position is {story.position}, but no row of it exists"
        case OffsetLocation.NOT_IN_KAFKA:
            return f"not in Kafka yet: the partition ends at {story.kafka_end}"
        case location:
            return _SENTENCES[location]


_SENTENCES = {
    OffsetLocation.DEAD_LETTER: "it is a dead letter",
    OffsetLocation.LOADED: "it is loaded; which row it is, or whether it has one, is unknown",
    OffsetLocation.GIVEN_UP: "given up: an operator declared everything up to there done, and no writer staged it",
    OffsetLocation.STAGED: "staged, and not loaded yet: the next load adds it",
    OffsetLocation.HELD: "staged, and not loaded: its Kafka partition is held",
    OffsetLocation.GAP: "it is not staged, although later records are",
    OffsetLocation.NOT_STAGED: "not staged yet",
}


def _taken_back(loaded: LoadedRange) -> str:
    by = "the log" if loaded.taken_by is None else _commit_words(loaded.taken_by)
    lost_by = "" if loaded.lost is None else f"what version {loaded.lost.version} had loaded, "
    return f"no longer there: {lost_by}{by} removed it; see `delta-loader status {CONFIG}`"


def _why_no_row(story: OffsetReport) -> str:
    commit = story.loaded.commit
    metadata = None if commit is None else commit.metadata
    counts = None if metadata is None else metadata.counts.get(story.query.partition)
    if counts is None:
        return "it was a tombstone, filtered, not a record (compacted, or the end of a transaction), or deleted since"
    can = []
    if counts.tombstones:
        can.append(f"a tombstone ({counts.tombstones:,} in that span)")
    if counts.filtered:
        can.append(f"filtered ({counts.filtered:,})")
    holes = metadata is not None and metadata.spans[story.query.partition].positions > counts.records
    if holes:
        can.append("not a record (compacted, or the end of a transaction)")
    return ", or ".join([*can, "a row that was deleted since"])


def _to_come_lines(story: OffsetReport) -> Iterator[str]:
    if story.is_done:
        return
    if story.staged is not None:
        yield f"its marker is {story.staged.name.path}, which covers {story.staged.span}"
        for table in story.staged.tables:
            yield from (
                f"staged file: {file.path} ({counted(file.rows, 'row')}) for {table.url}"
                for file in table.files[:_SHOWN]
            )
    if story.held is not None:
        yield f"held ({story.held.reason}): {story.held.problem}"
        yield f"→ {story.held.remedy}"
    position = "has no position of it yet" if story.position is None else f"has position {story.position}"
    staged = "nothing is staged" if story.staged_to is None else f"staged up to {story.staged_to}"
    yield f"the table {position}; {staged}"


def _holder_words(holder: Holder) -> str:
    if holder.rows is None:
        return f"may be in {holder.path} of {holder.url}: {holder.problem}"
    deleted = " (if that row is not among those deleted by its deletion vector)" if holder.deleted_rows else ""
    error = f", {holder.error}" if holder.error else ""
    return f"in {holder.path} of {holder.url}{deleted}{error}"


def _commit_words(commit: LoggedCommit) -> str:
    when = "" if commit.timestamp_ms is None else f" of {time_text(commit.timestamp_ms)}"
    return f"version {commit.version}{when} ({commit.operation})"


def offset_to_json(story: OffsetReport) -> Json:
    query, loaded = story.query, story.loaded
    return {
        "app_id": query.app_id,
        "table": story.table,
        **query.partition.to_json(),
        "offset": int(query.offset),
        "generation": query.generation,
        "place": story.place.value,
        "position": story.position,
        "brought_by": _commit_json(loaded.commit),
        "rewritten_by": _commit_json(loaded.replaced),
        "taken_back_by": _commit_json(loaded.taken_by),
        "oldest_version": loaded.oldest_version,
        "files": [
            {
                "table": holder.url,
                "path": holder.path,
                "dead_letters": holder.is_dead_letters,
                "rows": holder.rows,
                "problem": holder.problem or None,
                "error": holder.error or None,
            }
            for holder in story.holders
            if holder.rows != 0
        ],
        "marker": None if story.staged is None else story.staged.name.path,
        "staged_to": story.staged_to,
        "kafka_end": story.kafka_end,
        "held": None if story.held is None else {"reason": story.held.reason, "remedy": story.held.remedy},
        "owed_to": list(story.lacked_by),
    }


def _commit_json(commit: LoggedCommit | None) -> Json:
    if commit is None:
        return None
    metadata = commit.metadata
    return {
        "version": commit.version,
        "at_ms": commit.timestamp_ms,
        "operation": commit.operation,
        "commit_id": None if metadata is None else metadata.commit_id,
        "valid_through_ms": None if metadata is None else metadata.valid_through_ms,
    }
