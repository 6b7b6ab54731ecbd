"""Finds the records that a table refuses before they are written to it, and turns them into dead letters.

The rules are those of `delta_loader.tables.load_modes.refused`. A table without checks costs nothing here; a table with
checks costs a read of the columns that its checks use. Kafka is queried only for records that are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from common.errors import KafkaDeltaExpressError, TableError
from common.schema import schema_to_json
from common.settings import Stream
from common.spans import Offset, TopicPartition
from common.stage.merged import ends_at, id_of_input
from common.tables.dead_letters import DEAD_LETTER_SCHEMA
from common.tables.transactions import TxnIds
from delta_loader.load.committer import Committer, NextStep
from delta_loader.load.context import LoadContext
from delta_loader.load.stream_tables import StreamTables
from delta_loader.plan.held import Held
from delta_loader.plan.plan import TableShape
from delta_loader.ports import DeltaTables, NewId
from delta_loader.tables.commits import DeadLetterRow, TableCommit
from delta_loader.tables.load_modes.load_mode import Append
from delta_loader.tables.load_modes.refused import (
    MOST_REFUSED,
    REFUSED_BY_TABLE,
    RefusalIds,
    RefusedRecord,
    chains_of,
    dead_letters_commit,
    ended_refusals,
    too_many,
    without_bytes,
    without_refused,
)

if TYPE_CHECKING:
    from delta_loader.load.ports import RawRecord, RefusalPorts


@dataclass(frozen=True, slots=True)
class Refusals:
    stream: Stream
    tables: StreamTables
    delta: DeltaTables
    new_id: NewId
    refusing: RefusalPorts
    committer: Committer
    hold: Callable[[TopicPartition, Held], None]

    @classmethod
    def if_supported(cls, context: LoadContext, committer: Committer) -> Refusals | None:
        """The refusals of a pass over a stream; None where no table refuses rows."""
        ports = context.ports
        if ports.refusing is None:
            return None
        hold = context.reporter.held
        return cls(context.stream, context.tables, ports.tables, ports.new_id, ports.refusing, committer, hold)

    def without(self, commit: TableCommit, ids: TxnIds) -> TableCommit | None:
        """The commit without the records that its table refuses, once their dead letters are committed.

        None when the plan has to be made again: a partition is held now, or another loader was faster.
        """
        accepted = self._without(commit, ids)
        return None if accepted is None or self._end_others(commit, ids) is NextStep.PLAN_AGAIN else accepted

    def _without(self, commit: TableCommit, ids: TxnIds) -> TableCommit | None:
        if commit.target.url == self.stream.dead_letters or any(write.identity is None for write in commit.written):
            return commit  # refused records cannot be singled out, and hold their Kafka partition
        known = self._known(commit, ids)
        if known and commit.files:  # The table has no checks anymore; Spark still leaves the rows out.
            load_mode = Append("some of its records are dead letters already")
            self.tables.targets[commit.target.url] = replace(commit.target, load_mode=load_mode)
            return None
        alone = len(self.stream.row_tables) == 1
        if not commit.written:  # without rows here; its counts are of all tables
            return without_refused(commit, known, counted=alone)
        have = {record.position for record in known}
        if commit.merges:  # The next check runs as if these records had never been sent.
            has_one = all(write.shape.merge is None or write.shape.merge.row is None for write in commit.written)
            gone = [replace(record, rows=1) for record in known] if has_one else known
            commit, known = without_refused(commit, gone, counted=alone), []
        records: list[RefusedRecord] = []
        if commit.target.load_mode.checks_rows or any(write.casts for write in commit.written):
            records = self.refusing.refusal_reader.refused(commit.target, commit.written, MOST_REFUSED + 1)
        if len(records) > MOST_REFUSED:
            chains = chains_of(commit.metadata.spans)
            for partition in {chains[record.partition] for record in records}:
                self.hold(
                    partition, too_many(partition, commit.metadata.spans[partition].start, records, commit.target.url)
                )
            return None
        fresh = sorted(record for record in records if record.position not in have)
        if fresh and self._write_dead_letters(fresh, commit, ids) is NextStep.PLAN_AGAIN:
            return None
        seen = {record.position: record for record in (*known, *records)}
        return without_refused(commit, seen.values(), counted=alone)

    def _end_others(self, commit: TableCommit, ids: TxnIds) -> NextStep:
        """End other loaders' commits to the dead-letter table, once per set of the table's checks (rule 4)."""
        target = self.tables.targets.get(self.stream.dead_letters)
        if commit.target.checks is None or target is None or commit.target.url == target.url:
            return NextStep.GO_ON
        known = self.refusing.known_checks
        checks = {(commit.target.url, chain): commit.target.checks for chain in commit.metadata.spans}
        changed = {key: value for key, value in checks.items() if known.get(key) != value}
        after = NextStep.GO_ON
        if changed:
            with self.tables.tried(target.url):
                after = self.committer.commit(
                    ended_refusals(target, ids, (chain for _, chain in changed), self.new_id())
                )
                known.update(changed if after is NextStep.GO_ON else {})
        return after

    def _known(self, commit: TableCommit, ids: TxnIds) -> list[RefusedRecord]:
        """The records that a loader which died already made dead letters of (rule 3). Raises TableError."""
        url = self.stream.dead_letters
        if url in self.tables.failed and url not in self.tables.last_known and commit.target.checks is not None:
            error = self.tables.failed[url]
            msg = f"rows for {commit.target.url} wait, because some may already be dead letters: {error.problem}"
            raise TableError(msg, error.remedy)
        dead_letter_table = self.tables.targets.get(url) or self.tables.last_known.get(url)
        if dead_letter_table is None:
            return []
        records: list[RefusedRecord] = []
        for partition, span in commit.metadata.spans.items():
            if RefusalIds.for_chain(ids, partition).half_done(dead_letter_table.transactions, span.start):
                dead = self.refusing.refusal_reader.dead(dead_letter_table.url, partition, span.start)
                ends = {input_end.partition: input_end.position for input_end in ends_at(partition, span.end)}
                records += [record for record in dead if record.offset < ends.get(record.partition, span.end)]
        return list({record.position: record for record in records}.values())

    def _write_dead_letters(self, fresh: Sequence[RefusedRecord], commit: TableCommit, ids: TxnIds) -> NextStep:
        url = self.stream.dead_letters
        dead_letters = self._dead_letters(fresh, commit)
        if dead_letters is None:
            return NextStep.PLAN_AGAIN
        if url not in self.tables.targets and url not in self.tables.failed:
            with self.tables.tried(url):
                self.delta.create(url, TableShape(schema_to_json(DEAD_LETTER_SCHEMA), ()))
                self.tables.refresh()
            if url in self.tables.targets:
                return NextStep.PLAN_AGAIN  # another loader may have created it, and written these dead letters already
        target, after = self.tables.targets.get(url), NextStep.PLAN_AGAIN
        if target is not None:
            with self.tables.tried(url):
                filled = dead_letters_commit(target, ids, dead_letters, commit.metadata.spans, self.new_id())
                after = self.committer.commit(filled)
                if after is NextStep.GO_ON and commit.target.checks is not None:
                    chains = chains_of(commit.metadata.spans)
                    keys = {(commit.target.url, chains[record.partition]) for record in fresh}
                    self.refusing.known_checks.update(dict.fromkeys(keys, commit.target.checks))
        if url in self.tables.failed:
            why = f"the dead-letter table {url} cannot be written to: {self.tables.failed[url].problem}"
            self._hold_all(fresh, commit, why)
        return after

    def _dead_letters(self, fresh: Iterable[RefusedRecord], commit: TableCommit) -> list[DeadLetterRow] | None:
        """The records' dead letters, with their bytes; None when some cannot be fetched: these are held."""
        by_partition: dict[TopicPartition, list[RefusedRecord]] = {}
        for record in fresh:
            by_partition.setdefault(record.partition, []).append(record)
        dead_letters: list[DeadLetterRow] = []
        complete, chains = True, chains_of(commit.metadata.spans)
        for partition, records in by_partition.items():
            why = "Kafka no longer has it"
            try:
                sent = self._sent(partition, [record.offset for record in records], commit)
            except KafkaDeltaExpressError as error:
                sent, why = {}, f"Kafka does not return it: {error.problem}"
            missing = [record for record in records if record.offset not in sent]
            if missing:
                complete = False
                self.hold(chains[partition], without_bytes(missing[0], commit.target.url, why))
            dead_letters += [_dead_letter(record, sent[record.offset]) for record in records if record.offset in sent]
        return dead_letters if complete else None

    def _sent(
        self, partition: TopicPartition, offsets: Collection[Offset], commit: TableCommit
    ) -> Mapping[Offset, RawRecord]:
        chain = chains_of(commit.metadata.spans)[partition]
        ids = (write.topic_id for write in commit.written if write.partition == chain)  # one, where it is known
        known = (id_of_input(chain.topic, partition.topic, topic_id) for topic_id in ids if topic_id is not None)
        return self.refusing.raw_records(partition, offsets, next(known, None))

    def _hold_all(self, fresh: Iterable[RefusedRecord], commit: TableCommit, why: str) -> None:
        chains = chains_of(commit.metadata.spans)
        first = {chains[record.partition]: record for record in reversed(list(fresh))}
        for chain, record in first.items():
            self.hold(chain, without_bytes(record, commit.target.url, why))


def _dead_letter(record: RefusedRecord, sent: RawRecord) -> DeadLetterRow:
    return DeadLetterRow(
        record.partition, record.offset, sent.timestamp_ms, sent.key, sent.value, REFUSED_BY_TABLE, record.problem
    )
