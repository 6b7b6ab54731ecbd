"""The loader's action for a request to replace a range: wait, refuse, or the next step.

Rules:

1. A range is replaced only when the table has all of it: past the table's position the chain loads the rows.
2. A record of the range is in at least one table of the stream at any time. The steps are therefore in this order: rows
   for secondary tables (a route's, or the one for dead letters) are added next to the existing ones; the main table's
   rows are replaced, in one commit; the old rows are deleted from the secondary tables. Between these commits a record
   may be visible in two tables. After a crash, the next pass continues with the next step.
3. Each step is marked by the request's own txn action, in the same commit. It is therefore done once, no matter which
   loader tries. The deletion from a secondary table is committed even if there is nothing to delete. Otherwise a loader
   that was paused before that step would delete what a later request has added since.
4. Requests whose ranges overlap are carried out one after the other, each to its end: a step of one between two steps
   of another could leave a record in neither table. A request that has begun is therefore first, regardless of dates.
   If the table has the rows of a later request, an earlier one was carried out before it, and its create has arrived a
   second time.
5. A txn action outlives the rows that were committed with it: RESTORE removes the rows and keeps the txn action. A step
   therefore counts as done only if its commit is on the table's lineage (common/tables/rollback.py). This is checked
   before each next step and after the last. If a step was rolled back, or the log no longer shows it, the step is not
   repeated (Delta would skip it), and later steps are not done. The request is refused, and a new request repairs
   everything.
6. If a table has a record that the request does not have, the record was deleted from Kafka since (compaction). Such a
   request is refused, because replacing would lose the record.
7. Rows without offset columns (kafka_columns was off when they were loaded) cannot be found by their offsets, so they
   would stay next to the new ones. If a table has such rows, a request for records that no table names is refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice

from common.remedies import delta_table, replay
from common.settings import Stream
from common.spans import Position
from common.stage.merged import kafka_topic
from common.stage.replacements import Replacement, ReplacementName
from common.tables.commit_metadata import CommitMetadata
from common.tables.counts import Counts, Replaced
from common.tables.history import LoggedCommit, with_lineage
from common.tables.rollback import MOST_COMMITS
from common.tables.urls import comparable
from delta_loader.plan.held import Held
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import Target
from delta_loader.tables.load_modes.compatibility import differences, remedy_for


class RequestStep(IntEnum):
    """The commits of a request; the version of its txn action in each table."""

    ROWS = 1  # in the main table
    ADD = 1  # in a secondary table, before that
    DROP = 2  # in a secondary table, after that


def txn_id(request: str) -> str:
    """The app id of a request's txn actions. It starts with no stream's app id."""
    return f"kafka-delta-express-replace-{request}"


@dataclass(frozen=True, slots=True)
class Request:
    name: ReplacementName
    content: Replacement

    def metadata(self, commit_id: str) -> CommitMetadata:
        """The metadata of its commits: no span is loaded, one is replaced."""
        content = self.content
        filtered = sum(span.positions for span in content.filtered)
        dead_letters = sum(content.dead_letters.values())
        counts = Counts(content.records, content.rows, content.tombstones, dead_letters, (), filtered, content.exploded)
        replaced = Replaced(content.span, self.name.request, counts, content.positions)
        return CommitMetadata(commit_id, content.app_id, {}, None, {}, {self.name.topic_partition: replaced})

    @property
    def condition(self) -> str:
        """The condition for the rows of its range, as SQL."""
        partition, span = self.name.topic_partition, self.content.span
        # A topic's name has letters, digits, dots, dashes and underscores only.
        condition = (
            f"_kafka_topic = '{kafka_topic(partition.topic)}' AND _kafka_partition = {partition.partition} "
            f"AND _kafka_offset >= {span.start} AND _kafka_offset < {span.end}"
        )
        if not self.content.only:
            return condition
        # In addition to the bounds, by which Delta skips files.
        offsets = ", ".join(str(offset) for run in self.content.only for offset in range(run.start, run.end))
        return f"{condition} AND _kafka_offset IN ({offsets})"

    def held(self, reason: str, problem: str, remedy: str) -> Held:
        """Why this request cannot be carried out, or not yet, as a held partition."""
        partition = self.name.topic_partition
        return Held(reason, f"rows of {partition} {self.content.span} wait to be replaced: {problem}", remedy)

    @property
    def give_up(self) -> str:
        """The command with which an operator withdraws it."""
        return f"delete {self.name.path} from the stage"

    @property
    def give_up_and_ask_again(self) -> str:
        """The commands with which an operator stages its range once more."""
        span = self.content.span
        return f"{self.give_up}, and request it again with `{replay(self.name.topic_partition, span.start, span.end)}`"


def waits(request: Request, stream: Stream, position: Position | None) -> Held | None:
    """Why a request cannot be carried out now; None when it can (rule 1)."""
    content = request.content
    if content.app_id != stream.app_id or not stream.kafka_columns or stream.merge is not None:
        problem = f"it is for the stream {content.app_id}, whose rows have offset columns and are not merged"
        return request.held("replacement_refused", problem, request.give_up)
    urls = {comparable(url) for url in stream.tables}
    strange = [table.url for table in content.tables if comparable(table.url) not in urls]
    if strange:
        return request.held("replacement_refused", f"{strange[0]} is not a table of this stream", request.give_up)
    if position is None or content.span.end > position:
        position_text = "has no position" if position is None else f"is at {position}"
        return request.held(
            "replacement_waits",
            f"the table {position_text}, and only loaded records can be replaced",
            f"wait until the rest is loaded, or {request.give_up}",
        )
    return None


def rows_incompatibility(request: Request, target: Target) -> Held | None:
    """Why staged rows are incompatible with their table; None when they are compatible."""
    table = request.content.of(target.url)
    if table is None or not table.files:
        return None
    staged = TableShape(table.schema, target.shape.partition_by)
    problems = differences(target.shape, staged, target.load_mode)
    if not problems:
        return None
    return request.held(
        "replacement_refused",
        f"its rows are not compatible with {target.url}: {'; '.join(problems)}",
        f"{remedy_for(target.shape, staged, target.url, 'the columns of the stream', target.load_mode)}, and then "
        f"{request.give_up_and_ask_again}",
    )


def append_only(request: Request, url: str) -> Held:
    """The refusal of a request that would delete rows of an append-only table."""
    table = delta_table(url)
    return request.held(
        "replacement_refused",
        f"{url} is append-only, but rows of it would be deleted",
        f"ALTER TABLE {table} UNSET TBLPROPERTIES ('delta.appendOnly'); the next run completes it, and then the "
        f"property may be set again. Or {request.give_up}",
    )


def rolled_back(request: Request, url: str, history: Iterable[LoggedCommit]) -> Held | None:
    """The refusal of rule 5 for a table whose txn action says that it has a step; None when it has its rows."""
    for commit, is_on_lineage in islice(with_lineage(history), MOST_COMMITS):
        if _is_of(commit, request):
            if is_on_lineage:
                return None
            break
    return request.held(
        "replacement_refused",
        f"a completed part of it was removed from {url} (RESTORE), or its log no longer shows it; "
        "some of its records may be in two tables or in none",
        request.give_up_and_ask_again,
    )


def is_superseded(request: Request, history: Iterable[LoggedCommit]) -> bool:
    """Whether the main table has the rows of a later request for some of its range (rule 4)."""
    partition, span = request.name.topic_partition, request.content.span
    for commit, is_on_lineage in islice(with_lineage(history), MOST_COMMITS):
        if _is_of(commit, request):
            return False
        later = None if commit.metadata is None else commit.metadata.replaced.get(partition)
        if is_on_lineage and later is not None and span.overlaps(later.span):
            return True
    return False


def _is_of(commit: LoggedCommit, request: Request) -> bool:
    replaced = {} if commit.metadata is None else commit.metadata.replaced
    return any(replacement.request == request.name.request for replacement in replaced.values())


def behind(request: Request, earlier: Iterable[Request]) -> Held | None:
    """Why a request waits for unfinished ones that were made before it (rule 4)."""
    span = request.content.span
    for other in earlier:
        same = other.name.topic_partition == request.name.topic_partition
        if same and span.overlaps(other.content.span):
            problem = (
                f"{other.name.path}, which replaces {other.content.span}, was requested earlier and is not complete"
            )
            return request.held("replacement_waits", problem, f"wait for that one, or {other.give_up}")
    return None


def refusal_of_unnamed(request: Request, records: int) -> Held | None:
    """The refusal of rule 7."""
    if not records:
        return None
    return request.held(
        "replacement_refused",
        f"no table identifies {records:,} of its records, and a table has rows that do not identify their records "
        "(kafka_columns was off when they were loaded): these may be the same records, which would then occur twice",
        f"{request.give_up}, and choose a range of records that the tables identify",
    )


def refusal_of_compacted(request: Request, records: int) -> Held | None:
    """The refusal of rule 6."""
    if not records:
        return None
    return request.held(
        "replacement_refused",
        f"the tables have {records:,} records in it that Kafka no longer had when the request was made",
        f"{request.give_up}, and choose a range without them",
    )
