"""In-memory tables whose CHECK constraints refuse records, and the records that Kafka still has."""

from collections.abc import Callable, Collection, Sequence

from common.errors import TableError
from common.settings import Settings
from common.spans import Offset, Partition, Position, Span, Topic, TopicPartition
from common.stage.merged import ends_at, inputs_of
from common.tables.state import TableState
from delta_loader.load.ports import RawRecord, RefusalPorts, SendRefused
from delta_loader.load.report import StreamReport
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import CommitOutcome, Conflicted, DeadLetterRow, TableCommit, Target, Unknown
from delta_loader.tables.file_split import SparkWrite
from delta_loader.tables.load_modes.refused import RefusedRecord
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for
from tests.fakes.staging import Staging

SOURCE = TopicPartition(Topic("orders"), Partition(0))
CHECK = {"delta.constraints.odd": "id % 20 <> 0"}


class RefusingTables(MemoryDeltaTables):
    """Tables, the records that their constraints refuse, and the records that Kafka still has."""

    def __init__(self, staging: Staging) -> None:
        super().__init__()
        self.staging = staging
        self.refuses: set[int] = set()
        self.in_kafka = set(range(100))
        self.dies = False
        self.may_create = True
        self.unreadable: set[str] = set()
        self.breaks = False
        """Whether the dead-letter table becomes unreadable after its first dead letter."""
        self.lost: set[str] = set()
        """Tables whose commits succeed but lose the response."""
        self.before_creating: Callable[[], None] | None = None
        """Called right before a table is created."""

    def commit(self, commit: TableCommit) -> CommitOutcome:
        if self.dies and commit.target.url == self.staging.table:
            raise TableError("the loader dies")
        outcome = super().commit(commit)
        if commit.dead_letter_rows and self.breaks:
            self.unreadable.add(commit.target.url)
            return Conflicted("another commit was first")
        return Unknown("no response") if commit.target.url in self.lost else outcome

    def state(self, url: str) -> TableState | None:
        if url in self.unreadable:
            raise TableError("the log is away")
        return super().state(url)

    def create(self, url: str, shape: TableShape) -> None:
        if not self.may_create:
            raise TableError("no right to create")
        happens, self.before_creating = self.before_creating, None
        if happens is not None:
            happens()
        super().create(url, shape)

    def refused(self, _target: Target, writes: Sequence[SparkWrite], most: int) -> list[RefusedRecord]:
        partitions = {input_ for write in writes for input_ in inputs_of(write.partition)} & {SOURCE}
        records = [
            RefusedRecord(partition, Offset(offset), "odd") for partition in partitions for offset in self.refuses
        ]
        return records[:most]

    def dead(self, url: str, partition: TopicPartition, start: Position) -> list[RefusedRecord]:
        letters = [letter for commit in self.tables[url].commits for letter in commit.dead_letter_rows]
        begins = {end.partition: end.position for end in ends_at(partition, start)}
        return [
            RefusedRecord(letter.partition, letter.offset, letter.error, None)
            for letter in letters
            if letter.offset >= begins[letter.partition]
        ]

    def raw_records(
        self, _source: TopicPartition, offsets: Collection[Offset], _topic_id: str | None
    ) -> dict[Offset, RawRecord]:
        return {offset: RawRecord(1, None, b"sent %d" % offset) for offset in offsets if offset in self.in_kafka}

    def dead_letters(self, url: str, partition: TopicPartition, span: Span, most: int) -> list[DeadLetterRow]:
        letters = [letter for commit in self.tables[url].commits for letter in commit.dead_letter_rows]
        wanted = {
            letter.offset: letter
            for letter in letters
            if letter.partition == partition and span.start <= letter.offset < span.end
        }
        return [wanted[offset] for offset in sorted(wanted)][:most]

    def run(self, settings: Settings | None = None, topic: SendRefused | None = None) -> StreamReport:
        refusing = RefusalPorts(self, self.raw_records)
        (report,) = loader_for(self.staging, self, settings, refusing=refusing, sends_refused=topic).run_pass()
        return report

    @property
    def buried(self) -> list[int]:
        table = self.tables.get(self.staging.dead_letters)
        return sorted(
            letter.offset for commit in (table.commits if table else ()) for letter in commit.dead_letter_rows
        )

    @property
    def left_out(self) -> list[int]:
        commits = self.tables[self.staging.table].commits
        return sorted(offset for commit in commits for write in commit.written for _, offset in write.without)
