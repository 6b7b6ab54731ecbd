"""When to flush and when to pause."""

from __future__ import annotations

from dataclasses import replace

from common.spans import Partition, Topic, TopicPartition
from stage_writer.core.flushing import Filling, Flush, FlushReason, Limits, due, should_pause

LIMITS = Limits(flush_after_s=60, flush_bytes=1000, flush_records=100, memory_bytes=10_000)


def source(partition: int) -> TopicPartition:
    return TopicPartition(Topic("orders"), Partition(partition))


def filling(partition: int = 0, **changes: object) -> Filling:
    empty = Filling(source(partition), None, 0, 0, 0, flushing=False, flushing_bytes=0)
    return replace(empty, **changes)  # type: ignore[arg-type]


def test_an_empty_partition_is_never_due() -> None:
    assert due([filling()], LIMITS, now_s=1e9, paused=False) == ()


def test_age_needs_no_second_record() -> None:
    young = filling(first_record_at_s=100.0, records=1)
    assert due([young], LIMITS, now_s=159.9, paused=False) == ()
    assert due([young], LIMITS, now_s=160.0, paused=False) == (Flush(source(0), FlushReason.AGE),)


def test_bytes_and_records_come_before_age() -> None:
    assert (
        due([filling(first_record_at_s=0.0, parquet_bytes=1000)], LIMITS, 0.0, paused=False)[0].reason
        is FlushReason.BYTES
    )
    assert (
        due([filling(first_record_at_s=0.0, records=100)], LIMITS, 0.0, paused=False)[0].reason is FlushReason.RECORDS
    )


def test_a_partition_with_a_flush_under_way_waits() -> None:
    busy = filling(first_record_at_s=0.0, records=100, flushing=True)
    assert due([busy], LIMITS, now_s=1000.0, paused=False) == ()


def test_short_memory_flushes_the_largest_and_no_more_than_needed() -> None:
    fillings = [
        filling(0, first_record_at_s=0.0, memory_bytes=2000),
        filling(1, first_record_at_s=0.0, memory_bytes=7000),
        filling(2, first_record_at_s=0.0, memory_bytes=3000),
    ]
    assert due(fillings, LIMITS, now_s=0.0, paused=False) == (Flush(source(1), FlushReason.MEMORY),)


def test_what_is_on_its_way_out_is_waited_for() -> None:
    fillings = [
        filling(0, first_record_at_s=0.0, memory_bytes=3000),
        filling(1, flushing=True, flushing_bytes=9000),
    ]
    assert due(fillings, LIMITS, now_s=0.0, paused=False) == ()
    assert should_pause(fillings, LIMITS, paused=False)


def test_reading_resumes_only_with_room_to_spare() -> None:
    assert not should_pause([filling(memory_bytes=10_000)], LIMITS, paused=False)
    assert should_pause([filling(memory_bytes=10_001)], LIMITS, paused=False)
    assert should_pause([filling(memory_bytes=9000)], LIMITS, paused=True)
    assert not should_pause([filling(memory_bytes=8000)], LIMITS, paused=True)


def test_while_reading_is_paused_what_keeps_it_so_goes_out() -> None:
    fillings = [filling(0, first_record_at_s=0.0, memory_bytes=5000), filling(1, memory_bytes=4000)]
    assert due(fillings, LIMITS, now_s=0.0, paused=False) == ()
    assert due(fillings, LIMITS, now_s=0.0, paused=True) == (Flush(source(0), FlushReason.MEMORY),)
    assert due([filling(0, memory_bytes=8000)], LIMITS, now_s=0.0, paused=True) == ()
