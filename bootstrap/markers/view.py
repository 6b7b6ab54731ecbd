"""Formats chains: aligned text for people, JSON for programs."""

import json
from collections.abc import Sequence

from bootstrap.markers.chains import ChainFinding, PartitionChain, Severity, link_findings
from bootstrap.plans.state import StagedMarker
from common.printable import joined
from common.sizes import counted, size_text, time_text
from common.stage.markers import Marker, MarkerName, TableKind, manifest_to_bytes
from common.terminal import Tone, age_text, aligned, colored

Record = dict[str, object]

_CHAINS = ("partition", "markers", "from", "to", "table at", "records", "rows", "files", "size", "newest", "state")
_MARKERS = ("start", "end", "records", "rows", "dead", "files", "size", "age", "origin", "loaded", "writer")


def summary_record(chain: PartitionChain) -> Record:
    return {
        **chain.partition.to_json(),
        "app_id": chain.app_id,
        "generation": chain.generation,
        "markers": len(chain.staged),
        "start": chain.start,
        "end": chain.chain.end,
        "table_position": chain.table,
        **_counts(*(staged.marker for staged in chain.staged if staged.marker is not None)),
        "newest_ms": max(chain.modified_ms.values(), default=None),
        "strays": len(chain.chain.strays),
        "problems": [finding.text for finding in _faults(chain)],
    }


def _faults(chain: PartitionChain) -> list[ChainFinding]:
    return [finding for finding in link_findings(chain) if finding.severity is Severity.FAULT]


def _counts(*markers: Marker) -> dict[str, int]:
    manifests = [marker.manifest for marker in markers if marker.manifest is not None]
    tables = [table for manifest in manifests for table in manifest.tables]
    return {
        "records": sum(manifest.records for manifest in manifests),
        "rows": sum(table.rows for table in tables if table.kind is TableKind.ROWS),
        "dead_letters": sum(sum(manifest.dead_letters.values()) for manifest in manifests),
        "files": sum(len(table.files) for table in tables),
        "size_bytes": sum(file.size_bytes for table in tables for file in table.files),
    }


def marker_records(chain: PartitionChain) -> list[Record]:
    strays = {marker.name for marker in chain.chain.strays}
    return [_marker_record(chain, staged, is_stray=staged.name in strays) for staged in chain.staged]


def _marker_record(chain: PartitionChain, staged: StagedMarker, *, is_stray: bool) -> Record:
    marker = staged.marker
    record: Record = {
        "path": staged.path,
        "start": int(staged.name.start),
        "readable": marker is not None,
        "modified_ms": chain.modified_ms.get(staged.path),
    }
    if marker is None:
        return record
    manifest = marker.manifest
    return {
        **record,
        "end": int(marker.span.end),
        "previous": marker.previous,
        "origin": marker.origin or "hand",
        "writer": None if manifest is None else manifest.writer,
        "created_ms": None if manifest is None else manifest.created_ms,
        **_counts(marker),
        "loaded": chain.has_loaded(marker.span),
        "stray": is_stray,
    }


def chains_as_text(chains: Sequence[PartitionChain], now_ms: int) -> str:
    if not chains:
        return "There are no markers."
    rows = []
    for chain in chains:
        record = summary_record(chain)
        faults = _faults(chain)
        state = colored(faults[0].kind, Tone.BAD) if faults else colored("whole", Tone.GOOD)
        newest = max(chain.modified_ms.values(), default=now_ms)
        rows.append(
            (
                str(chain.partition),
                f"{len(chain.staged):,}",
                *(_number(record[key]) for key in ("start", "end", "table_position", "records", "rows", "files")),
                size_text(int(str(record["size_bytes"]))),
                age_text((now_ms - newest) / 1000),
                state,
            )
        )
    return aligned(_CHAINS, rows, right=range(1, 10))


def chain_as_text(chain: PartitionChain, now_ms: int) -> str:
    """A line for each marker of one chain."""
    rows: list[tuple[str, ...]] = []
    for record in marker_records(chain):
        modified_ms = record["modified_ms"]
        age = age_text((now_ms - modified_ms) / 1000 if isinstance(modified_ms, int) else 0)
        if not record["readable"]:
            rows.append((_number(record["start"]), *("?",) * 6, age, colored("unreadable", Tone.BAD), "", ""))
            continue
        loaded = "yes" if record["loaded"] else "no"
        rows.append(
            (
                *(_number(record[key]) for key in ("start", "end", "records", "rows", "dead_letters", "files")),
                size_text(int(str(record["size_bytes"]))),
                age,
                str(record["origin"]),
                colored("stray", Tone.WARNING) if record["stray"] else loaded,
                str(record["writer"] or ""),
            )
        )
    table_position = "has no position" if chain.table is None else f"wants {chain.table:,}"
    return (
        f"{chain.partition}  stream {chain.app_id}, the table "
        f"{table_position}\n{aligned(_MARKERS, rows, right=range(8))}"
    )


def findings_as_text(findings: Sequence[ChainFinding], chains: int, files: int) -> str:
    lines = []
    for finding in findings:
        tone = Tone.BAD if finding.severity is Severity.FAULT else Tone.WARNING
        lines.append(f"{colored(finding.severity.value, tone)}  {finding.partition}  {finding.text}")
        lines += [f"       → {finding.remedy}"] if finding.remedy else []
    faults = sum(finding.severity is Severity.FAULT for finding in findings)
    verdict = colored(counted(faults, "fault"), Tone.BAD) if faults else colored("no fault", Tone.GOOD)
    lines.append(f"{counted(chains, 'chain')} and {counted(files, 'data file')}: {verdict}")
    return joined(lines)


def findings_as_json(findings: Sequence[ChainFinding], chains: int, files: int) -> str:
    records = [
        {
            **finding.partition.to_json(),
            "severity": finding.severity.value,
            "kind": finding.kind,
            "text": finding.text,
            "remedy": finding.remedy,
            "path": finding.path,
        }
        for finding in findings
    ]
    return json.dumps({"chains": chains, "files": files, "findings": records}, indent=2)


def marker_as_json(staged: StagedMarker) -> str:
    marker = staged.marker
    if marker is None or marker.manifest is None:
        return json.dumps({"path": staged.path, "manifest": None}, indent=2)
    stored: object = json.loads(manifest_to_bytes(marker.name.topic_partition, marker.manifest))
    return json.dumps({"path": staged.path, "manifest": stored}, indent=2)


def marker_as_text(chain: PartitionChain, staged: StagedMarker) -> str:
    marker = staged.marker
    if marker is None:
        return f"{staged.path}\n  {staged.problem}; see docs/internals/guarantees.md, “Corrupt markers”"
    lines = [staged.path, f"  covers      {marker.span}, {counted(marker.span.positions, 'position')}"]
    if marker.manifest is None:
        return joined(
            [*lines, "  made by hand: all records through its offset count as done; the next writer starts after it"]
        )
    manifest = marker.manifest
    dead, before = sum(manifest.dead_letters.values()), "it begins the chain"
    if manifest.previous is not None:
        before = MarkerName(chain.partition, manifest.previous).path
    lines += [
        f"  before it   {before}",
        f"  stream      {manifest.app_id}, generation {manifest.generation}, format version {manifest.version}",
        f"  made        {time_text(manifest.created_ms)} by {manifest.writer} ({manifest.origin.value})",
        f"  loaded      {'yes' if chain.has_loaded(marker.span) else 'no'}",
        f"  records     {manifest.records:,}",
        f"    {manifest.tombstones:,} tombstones, {manifest.filtered:,} filtered, {dead:,} dead letters",
    ]
    lines += [f"      {count:,} {name}" for name, count in sorted(manifest.dead_letters.items())]
    lines += [f"  rule        {rule}: broken by {count:,}" for rule, count in sorted(manifest.violations.items())]
    lines += [f"  input       {end.partition} up to {end.position:,}" for end in manifest.inputs]
    lines += [f"  outbox      {path}" for path in manifest.outboxes]
    if manifest.lowest_timestamp_ms is not None and manifest.highest_timestamp_ms is not None:
        lines.append(f"  from        {time_text(manifest.lowest_timestamp_ms)}")
        lines.append(f"  to          {time_text(manifest.highest_timestamp_ms)}")
    for table in marker.tables:
        kind = "dead letters" if table.kind is TableKind.DEAD_LETTERS else "rows"
        lines.append(f"  {table.url}  {table.rows:,} {kind}")
        lines += [f"    {file.path}  {counted(file.rows, 'row')}, {size_text(file.size_bytes)}" for file in table.files]
    return joined(lines)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"
