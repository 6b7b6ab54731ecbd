"""Whether the records that Kafka has at a table's offsets are those that were loaded.

Rules:

1. Offsets alone cannot tell: a topic that was replaced, or that lost records and got others, has the same ones. The
   topic that a position belongs to has an id, which the table's commits name (common/tables/identity.py). A record
   keeps its timestamp for as long as Kafka has it, even if the topic's settings change, and its rows and its dead
   letter have it to the millisecond.
2. Timestamps are compared where both sides have one, and in spans that the stream's own commits loaded: other programs
   may write anything to the column. Records that are not compared are counted and reported.
3. A different record with the same millisecond is mistaken for the original. A fault therefore names the first offset
   that differs, and says that the ones before it are not proved.
"""

from collections.abc import Callable, Iterable

from common.remedies import CONFIG, repair
from common.sizes import agreeing, counted
from common.spans import Span, TopicPartition
from delta_loader.inspect.verify.findings import Finding, Verdict
from delta_loader.inspect.verify.offset_ranges import OffsetRange, joined_spans
from delta_loader.inspect.verify.reconcile_facts import BucketTotals, Tables
from delta_loader.tables.valid_through import moment_text


def staged_spans(ranges: Iterable[OffsetRange]) -> list[Span]:
    """The positions of offset ranges that the stream's own commits loaded in full, in order; neighbors are joined."""
    return joined_spans(each.span for each in ranges if not any(load.is_foreign for load in each.loaded))


def other_topic(
    tables: Tables, partition: TopicPartition, topic_id: str | None, has_partition: Callable[[TopicPartition], bool]
) -> Finding | None:
    """A fault if the table's position is of a topic other than the one that Kafka has, whose id is ``topic_id``.

    A partition that the other topic does not have can get no new chain: nothing is wrong, and nothing can be compared.
    """
    loaded = tables.rows.topic_ids.get(partition)
    if loaded is None or topic_id is None or loaded == topic_id:
        return None
    text = (
        f"the table has {partition} up to {tables.rows.positions[partition]} of a topic with the id {loaded}, and the "
        f"topic {partition.topic} in Kafka is a different one, with the id {topic_id}"
    )
    if not has_partition(partition):
        text += ", without this partition: its records were not compared"
        return Finding(Verdict.UNPROVED, "other_topic", text, tables.url, partition)
    text += (
        ": its records were not compared "
        f"→ load what is staged (`delta-loader run {CONFIG} --once`), and start a new chain at Kafka's first record: "
        f"`{repair('restart', partition, None, '--yes')}`"
    )
    return Finding(Verdict.FAULT, "other_topic", text, tables.url, partition)


def other_records(
    tables: Tables, partition: TopicPartition, seen: BucketTotals, loaded_ms: int | None, kafka_ms: int | None
) -> Finding:
    """The fault that records have other timestamps in Kafka; names the first record's, in milliseconds."""
    spans = tuple(seen.other_times.spans)
    start, count = spans[0].start, seen.other_times.count
    text = (
        f"{counted(count, 'record')} of {partition} {agreeing(count, 'has', 'have')} another timestamp in Kafka than "
        f"in the tables, the first one at {start} ({_words(kafka_ms)} in Kafka, {_words(loaded_ms)} "
        "in the tables): Kafka lost records "
        "that were loaded, and has others in their place (an unclean leader election, or brokers restored from a copy)"
        f"; a record before {start} may differ, too, if it has the same timestamp "
        f"→ load what is staged (`delta-loader run {CONFIG} --once`), and start a new chain there: "
        f"`{repair('restart', partition, None, f'--at {start} --yes')}`"
    )
    return Finding(Verdict.FAULT, "other_records", text, tables.url, partition, spans)


def compared(seen: BucketTotals) -> str:
    """A sentence about which parts of the records, other than offsets, were compared (rule 2)."""
    left = [
        f"the timestamps of {counted(seen.without_times, 'other')}" if seen.without_times else "",
        f"{counted(seen.expired, 'loaded record')} that Kafka no longer has" if seen.expired else "",
        "contents",
    ]
    named = [problem for problem in left if problem]
    rest = ", ".join(named[:-1]) + f" and {named[-1]}" if len(named) > 1 else named[0]
    return f"timestamps compared: {seen.same_times:,}, all equal; not compared: {rest}"


def _words(time_ms: int | None) -> str:
    return "no longer there" if time_ms is None else moment_text(time_ms)
