"""A verification's report as text and as JSON.

Rule: the first line of a stream is the result; faults come before everything else, and each names what, where, and the
version and files behind it.
"""

from collections.abc import Iterator, Sequence

from common.printable import joined
from common.sizes import counted
from delta_loader.inspect.verify.findings import Finding, PartitionReport, Verdict, VerifiedStream

_ORDER = (Verdict.FAULT, Verdict.UNPROVED, Verdict.NOTED, Verdict.PROVED)
_FILES = 5


def to_text(streams: Sequence[VerifiedStream]) -> str:
    return "\n\n".join(joined(_stream_lines(stream)) for stream in streams)


def _stream_lines(stream: VerifiedStream) -> Iterator[str]:
    if stream.failure is not None:
        yield f"{stream.app_id}: NOT CHECKED: {stream.failure}"
        return
    unproved = sum(finding.verdict is Verdict.UNPROVED for finding in stream.findings)
    if stream.faults:
        conclusion = f"{len(stream.faults)} FAULT{'S' if len(stream.faults) > 1 else ''}"
    elif unproved:
        conclusion = "no fault; not all of it can be proved"
    else:
        conclusion = "proved: each record once, none missing"
    yield f"{stream.app_id}: {conclusion}"
    yield f"  {stream.table} at version {stream.version}, by its history from version {stream.first_version} on"
    yield from (f"  {url} at version {version}" for url, version in stream.routed.items())
    yield from (f"  {_partition_line(partition)}" for partition in stream.partitions)
    for verdict in _ORDER:
        for finding in stream.findings:
            if finding.verdict is verdict:
                yield from _finding_lines(finding)


def _partition_line(partition: PartitionReport) -> str:
    start = "…" if partition.begins is None else str(partition.begins)
    position = "…" if partition.position is None else str(partition.position)
    parts = [f"{partition.partition}  [{start}, {position})"]
    if partition.rows is not None:
        parts.append(f"{counted(partition.rows, 'row')}, {counted(partition.dead_letters or 0, 'dead letter')}")
        if partition.counted_records is not None:
            parts[-1] += f", {counted(partition.counted_tombstones or 0, 'tombstone')}"
            parts[-1] += f", {partition.counted_filtered:,} filtered" if partition.counted_filtered else ""
            parts[-1] += f"; {counted(partition.counted_records, 'record')} staged"
        if partition.lowest is not None:
            parts[-1] += f"; offsets {partition.lowest} to {partition.highest}"
    parts.append("proved" if partition.proved else "see below")
    return "  ".join(parts)


def _finding_lines(finding: Finding) -> Iterator[str]:
    mark = "FAULT" if finding.verdict is Verdict.FAULT else finding.verdict.value
    yield f"  {mark}: {finding.text} [{finding.kind}]"
    if finding.verdict is Verdict.FAULT:
        yield f"    table: {finding.table}" + ("" if finding.version is None else f", version {finding.version}")
        yield from (f"    file: {path}" for path in finding.files[:_FILES])
        if len(finding.files) > _FILES:
            yield f"    and {len(finding.files) - _FILES} more files"


def to_json(streams: Sequence[VerifiedStream]) -> dict[str, object]:
    return {
        "proved": all(stream.is_clean for stream in streams),
        "streams": [
            {
                "app_id": stream.app_id,
                "table": stream.table,
                "version": stream.version,
                "first_version": stream.first_version,
                "routed": dict(stream.routed),
                "clean": stream.is_clean,
                "failure": stream.failure,
                "partitions": [_partition(partition) for partition in stream.partitions],
                "findings": [_finding(finding) for finding in stream.findings],
            }
            for stream in streams
        ],
    }


def _partition(partition: PartitionReport) -> dict[str, object]:
    return {
        **partition.partition.to_json(),
        "begins": partition.begins,
        "position": partition.position,
        "rows": partition.rows,
        "distinct_offsets": partition.distinct,
        "lowest_offset": partition.lowest,
        "highest_offset": partition.highest,
        "dead_letters": partition.dead_letters,
        "records_staged": partition.counted_records,
        "tombstones_staged": partition.counted_tombstones,
        "filtered_staged": partition.counted_filtered,
        "proved": partition.proved,
    }


def _finding(finding: Finding) -> dict[str, object]:
    partition = finding.partition
    return {
        "verdict": finding.verdict.value,
        "kind": finding.kind,
        "text": finding.text,
        "table": finding.table,
        **({"topic": None, "partition": None} if partition is None else partition.to_json()),
        "spans": [[int(span.start), int(span.end)] for span in finding.spans],
        "version": finding.version,
        "files": list(finding.files),
    }
