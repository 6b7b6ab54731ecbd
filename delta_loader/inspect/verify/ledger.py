"""A table's history read as a ledger: which commit loaded which positions, and which removed rows.

Rules:

1. A Kafka partition's spans follow one another: each starts where the previous one ends. A version that moves a txn
   action without rows, sets it back, or loads a span twice or after a gap is at fault.
2. DELETE, UPDATE, MERGE and TRUNCATE remove rows legitimately, since that is their purpose, and so does a replacement
   that the loader was asked for. Any other commit that removes files is named when rows are missing because of it.
3. A commit that says that it only rearranges rows must add as many as it removes.
4. A commit of this product adds as many rows as it counts, and its txn actions are its spans' last offsets. A commit
   that merges events changes rows, which are not counted here. Whether it merged is what the commit says, not the
   current settings; an older release's commit does not say, and merged if it removed rows.
5. A recreated topic starts a new generation (common/tables/transactions.py): its positions start over, and the older
   generation's loads are no longer followed. A commit's spans are of the generation that its metadata names, and move
   that generation's txn action; a late commit of an older generation is noted, and moves nothing here.
6. An operator's resolution of a rollback (`bootstrap accept`) is legitimate: the removed rows, and the position that
   loading continues from. Rows that will be loaded again are no longer expected from before.
7. Where the log has been cleaned up, nothing is claimed: the ledger starts with the oldest existing version.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from common.sizes import counted
from common.spans import Offset, Position, Span, TopicPartition, position_after
from common.stage.markers import TableKind
from common.tables.commit_metadata import CommitMetadata, Resolved
from common.tables.counts import Counts, Replaced
from common.tables.identity import plain_of
from common.tables.transactions import TxnIds
from delta_loader.inspect.verify.findings import Finding, Verdict
from delta_loader.tables.history import DataFile, TableVersion, total_rows

_BY_RIGHT = frozenset({"DELETE", "UPDATE", "MERGE", "TRUNCATE"})
_COPIES = ("CLONE", "CONVERT")  # operations whose rows have a history in another table


@dataclass(frozen=True, slots=True)
class LoadedSpan:
    version: int
    span: Span
    counts: Counts | None
    """None for a commit that does not count: by an older release or another program."""
    is_foreign: bool = False
    """Whether another program moved the txn action, as kafka-delta-ingest does."""
    has_offset_statistics: bool = True
    """Whether the rows may name their records: false if no file of the commit has offsets in its statistics."""
    other_tables: tuple[str, ...] = ()
    """The URLs of the other tables that the commit names; a commit of an older release names none."""


@dataclass(frozen=True, slots=True)
class ReplacedSpan:
    version: int
    replaced: Replaced
    net_rows: int | None
    """How many more rows the table has after it; None when its files have no counts."""


@dataclass(frozen=True, slots=True)
class Removal:
    version: int
    words: str
    by_right: bool
    rows: int | None
    """How many fewer rows the table has after it; None when its files have no counts."""
    files: tuple[DataFile, ...]

    def touches(self, partition: TopicPartition, span: Span) -> tuple[str, ...]:
        return tuple(file.path for file in self.files if file.reach.may_hold(partition, span))


class Ledger:
    """One table's ledger; pass its versions to `take` in order."""

    def __init__(
        self,
        url: str,
        ids: TxnIds,
        topics: tuple[str, ...],
        *,
        dead_letters: bool = False,
        sparse: bool = False,
        merged: bool = False,
    ) -> None:
        """``topics`` are those of the stream's chains; if there is only one, txn ids do not contain it.

        A ``sparse`` table, such as one for dead letters, gets a commit only for spans with rows for it, so gaps between
        its spans are legitimate. ``merged`` says whether the stream merges events into the table now.
        """
        self.url = url
        self._dead_letters = dead_letters
        self._sparse = sparse or dead_letters
        self._merged = merged
        self.ids = ids
        """From the newest of the stream's commits that records them (common/tables/identity.py)."""
        self._topics = topics
        self._live: dict[str, DataFile] = {}
        self.added_by: dict[str, int] = {}
        """By the path of every file that the history names, the version that added it."""
        self.first_version: int | None = None
        self.version: int | None = None
        self.is_copy = False
        self.begins: dict[TopicPartition, Position] = {}
        self.positions: dict[TopicPartition, Position] = {}
        self.loaded: dict[TopicPartition, list[LoadedSpan]] = {}
        self.replacements: dict[TopicPartition, list[ReplacedSpan]] = {}
        self.generations: dict[TopicPartition, int] = {}
        """Only of recreated topics."""
        self.topic_ids: Mapping[TopicPartition, str] = {}
        """The ids of the topics that the positions belong to, where known."""
        self.transactions: dict[str, int] = {}
        """All txn actions in the history, of any program."""
        self.removals: list[Removal] = []
        self.last_merge = -1
        """The newest version that merged events; -1 for none."""
        self.other_tables: dict[str, TableKind] = {}
        """All other tables that the stream's commits name."""
        self.findings: list[Finding] = []

    def take(self, version: TableVersion) -> None:
        if self.first_version is None:
            self.first_version = version.version
        self.version = version.version
        self.transactions |= version.transactions
        self.is_copy |= version.version == self.first_version and version.operation.startswith(_COPIES)
        removed = tuple(self._live.pop(file.path, file) for file in version.removed)
        for file in version.added:
            self._live[file.path] = file
            self.added_by[file.path] = version.version
        own = version.metadata
        if own is not None and own.app_id != self.ids.app_id:
            own = None
        if own is not None:
            plain = plain_of(own, self.ids, version.transactions) if own.plain_topic is None else own.plain_topic
            self.ids = self.ids if plain is None else self.ids.in_table(plain)
        if not version.changes_data:
            self._take_arrangement(version, removed)
        elif own is None:
            self._take_foreign(version, removed)
        self._take_positions(version, own)
        if own is None:
            return
        if own.positions:
            self.topic_ids = own.topic_ids  # of all of the table's chains
        self.other_tables |= own.other_tables
        if _merges(version, own):
            self.last_merge = version.version
        self._take_counts(version, own)
        self._take_replacements(version, own, removed)

    @property
    def has_foreign_rows(self) -> bool:
        """Whether another program added or removed rows."""
        return bool(self.removals) or any(finding.kind == "foreign_rows" for finding in self.findings)

    def files_of(self, version: int, partition: TopicPartition, span: Span) -> tuple[str, ...]:
        """The files that a version added, that still exist, and that may contain records of a span."""
        return tuple(
            path
            for path, file in self._live.items()
            if self.added_by[path] == version and file.reach.may_hold(partition, span)
        )

    def live(self) -> Iterator[tuple[str, int]]:
        """The files of the newest version that are below the table, and the versions that added them."""
        return ((path, self.added_by[path]) for path in self._live if "://" not in path and not path.startswith("/"))

    def touching(self, partition: TopicPartition, span: Span, after: int) -> list[Removal]:
        """The foreign commits after a version that may have removed records of a span."""
        return [removal for removal in self.removals if removal.version > after and removal.touches(partition, span)]

    # One version's claims.

    def _take_arrangement(self, version: TableVersion, removed: tuple[DataFile, ...]) -> None:
        before, after = total_rows(removed), version.added_rows
        if removed and before is not None and after is not None and before != after:
            text = f"version {version.version} ({version.words}) removed {counted(before, 'row')} and added {after:,}"
            self._find(Verdict.FAULT, "rows_changed_on_the_way", text, version)

    def _take_foreign(self, version: TableVersion, removed: tuple[DataFile, ...]) -> None:
        before, after = total_rows(removed), version.added_rows
        gone = None if before is None or after is None else before - after
        if removed:
            by_right = version.operation in _BY_RIGHT
            self.removals.append(Removal(version.version, version.words, by_right, gone, removed))
        elif after is None or after > 0:
            rows = "rows" if after is None else counted(after, "row")
            text = f"version {version.version} ({version.words}) added {rows} that no writer staged"
            self._find(Verdict.NOTED, "foreign_rows", text, version)

    def _take_positions(self, version: TableVersion, own: CommitMetadata | None) -> None:
        spans = {} if own is None else dict(own.spans)
        if own is not None and own.answers is not None:
            self._take_answer(version, own, own.answers)
            return
        for app_id, last in version.transactions.items():
            chain = self.ids.chain_of(app_id, self.ids.plain_topic or self._topics[0])
            if chain is None:  # another program's
                continue
            partition, generation = chain
            position = position_after(Offset(last))
            named = 0 if version.metadata is None else version.metadata.generation(partition)
            span = spans.pop(partition, None) if named == generation else None
            if not self._is_newest(version, partition, generation):
                continue
            if span is None:
                self._move_foreign(version, partition, position)
            else:
                self._move(version, partition, span, position)
        for partition, span in spans.items():
            text = f"version {version.version} loaded {span} of {partition} without moving its txn action"
            self._find(Verdict.FAULT, "no_txn_action", text, version, partition, span)

    def _take_answer(self, version: TableVersion, own: CommitMetadata, resolved: Resolved) -> None:
        self.removals = [
            replace(removal, by_right=True) if removal.version == resolved.version else removal
            for removal in self.removals
        ]
        for partition, position in resolved.positions.items():
            if not self._is_newest(version, partition, own.generation(partition)):
                continue
            self.positions[partition] = position
            self.begins.setdefault(partition, position)
            loaded = [load for load in self.loaded.get(partition, []) if load.span.start < position]
            self.loaded[partition] = [
                load if load.span.end <= position else LoadedSpan(load.version, Span(load.span.start, position), None)
                for load in loaded
            ]
            self.replacements[partition] = [
                replacement
                for replacement in self.replacements.get(partition, [])
                if replacement.replaced.span.end <= position
            ]
            text = (
                f"version {version.version}: an operator resolved ({resolved.decision.value}) the rollback at "
                f"version {resolved.version}: {partition} continues from {position}"
            )
            self._find(Verdict.NOTED, "answered", text, version, partition)

    def _is_newest(self, version: TableVersion, partition: TopicPartition, generation: int) -> bool:
        """Whether a version's claim about a Kafka partition is for its newest topic; a new one starts here (rule 5)."""
        newest = self.generations.get(partition, 0)
        if generation < newest:
            text = f"version {version.version} is of a former topic {partition} (generation {generation}, not {newest})"
            self._find(Verdict.NOTED, "older_generation", text, version, partition)
            return False
        if generation > newest:
            self.generations[partition] = generation
            for known in (self.begins, self.positions, self.loaded, self.replacements):
                known.pop(partition, None)
            self.topic_ids = {other: topic_id for other, topic_id in self.topic_ids.items() if other != partition}
        return True

    def _move(self, version: TableVersion, partition: TopicPartition, span: Span, position: Position) -> None:
        known = self.positions.get(partition)
        if known is None:
            self.begins[partition] = span.start
        elif span.start > known and not self._sparse:
            gap = Span(known, span.start)
            text = f"version {version.version} continues at {span.start} of {partition}, and {gap} was never loaded"
            self._find(Verdict.FAULT, "gap", text, version, partition, gap)
        elif span.start < known:
            twice = Span(span.start, min(known, span.end))
            text = f"version {version.version} loads {twice} of {partition} a second time"
            self._find(Verdict.FAULT, "overlap", text, version, partition, twice)
        if position != span.end:
            text = f"version {version.version} loaded {span} of {partition}, and its txn action says {position} is next"
            self._find(Verdict.FAULT, "txn_action_differs", text, version, partition, span)
        metadata = version.metadata
        counts = None if metadata is None else metadata.counts.get(partition)
        has_offset_statistics = not version.added or any(file.reach.offsets is not None for file in version.added)
        others = () if metadata is None else tuple(metadata.other_tables)
        loaded = LoadedSpan(
            version.version, span, counts, has_offset_statistics=has_offset_statistics, other_tables=others
        )
        self.loaded.setdefault(partition, []).append(loaded)
        self.positions[partition] = position

    def _move_foreign(self, version: TableVersion, partition: TopicPartition, position: Position) -> None:
        """Process one of this product's txn actions that came without its metadata."""
        known = self.positions.get(partition)
        self.positions[partition] = position
        if known is None:
            self.begins[partition] = position
            if version.added:  # kafka-delta-ingest, or a copy of the table
                text = f"version {version.version} ({version.words}) says that {partition} is loaded up to {position}"
                self._find(Verdict.NOTED, "begun_by_another_program", text, version, partition)
        elif position < known:
            text = f"version {version.version} ({version.words}) set the txn action of {partition} back to {position}"
            self._find(Verdict.FAULT, "txn_action_set_back", text, version, partition, Span(position, known))
        elif position > known and version.added:
            text = f"version {version.version} ({version.words}) loaded {Span(known, position)} of {partition}"
            self._find(Verdict.NOTED, "brought_by_another_program", text, version, partition)
            self.loaded.setdefault(partition, []).append(
                LoadedSpan(version.version, Span(known, position), None, is_foreign=True)
            )
        elif position > known:
            gap = Span(known, position)
            text = (
                f"version {version.version} ({version.words}) moved the txn action of {partition} from {known} to "
                f"{position} without rows: {gap} was never loaded"
            )
            self._find(Verdict.FAULT, "txn_action_moved_ahead", text, version, partition, gap)

    def _take_counts(self, version: TableVersion, metadata: CommitMetadata) -> None:
        """Compare a commit's counts with each other, and with its files (rule 4)."""
        rows = version.added_rows
        if not metadata.spans or set(metadata.counts) != set(metadata.spans):
            return
        for partition, counts in metadata.counts.items():
            if not counts.add_up:
                text = (
                    f"version {version.version} counts {counted(counts.records, 'record')} of {partition}, and "
                    f"{counts.records_with_rows:,} with rows, {counted(counts.dead_letters, 'dead letter')}, "
                    f"{counted(counts.tombstones, 'tombstone')}, {counts.filtered:,} filtered"
                )
                self._find(Verdict.FAULT, "counts_do_not_add_up", text, version, partition, metadata.spans[partition])
        expected = sum(
            count.dead_letters if self._dead_letters else count.rows_here for count in metadata.counts.values()
        )
        if rows is not None and expected != rows and not self._merged and not _merges(version, metadata):
            text = f"version {version.version} counts {counted(expected, 'row')}, and its files hold {rows:,}"
            self._find(Verdict.FAULT, "files_differ_from_counts", text, version)

    def _take_replacements(
        self, version: TableVersion, metadata: CommitMetadata, removed: tuple[DataFile, ...]
    ) -> None:
        before, after = total_rows(removed), version.added_rows
        net = None if before is None or after is None or len(metadata.replaced) != 1 else after - before
        for partition, replaced in metadata.replaced.items():
            self.replacements.setdefault(partition, []).append(ReplacedSpan(version.version, replaced, net))
            text = f"version {version.version} replaced {replaced.words} of {partition} (request {replaced.request})"
            self._find(Verdict.NOTED, "replaced", text, version, partition, replaced.span)

    def _find(
        self,
        verdict: Verdict,
        kind: str,
        text: str,
        version: TableVersion,
        partition: TopicPartition | None = None,
        *spans: Span,
    ) -> None:
        files = tuple(file.path for file in version.added) if verdict is Verdict.FAULT else ()
        self.findings.append(Finding(verdict, kind, text, self.url, partition, spans, version.version, files))


def _merges(version: TableVersion, metadata: CommitMetadata) -> bool:
    """Whether one of this product's commits merged events (rule 4)."""
    removes = bool(version.removed) and not metadata.replaced and metadata.answers is None
    return version.changes_data and bool(metadata.spans) and (metadata.merged_by is not None or removes)
