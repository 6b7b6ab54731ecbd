"""Which partitions to flush, and which to pause."""

from dataclasses import replace

from common.spans import Partition, Topic, TopicPartition
from stage_writer.partitions.flush_decision import (
    LEAST_AGE_SHARE,
    BackpressureState,
    BufferStats,
    Flush,
    FlushDecision,
    FlushLimits,
    FlushReason,
    age_fraction_of,
    decide,
)
from tests.fakes.streams import stream_of

LIMITS = FlushLimits(flush_after_s=60, flush_bytes=1000, flush_records=100, memory_bytes=10_000)


def source(partition: int) -> TopicPartition:
    return TopicPartition(Topic("orders"), Partition(partition))


def filling(partition: int = 0, **changes: object) -> BufferStats:
    empty = BufferStats(source(partition), None, 0, 0, 0, flushing=False, flushing_bytes=0)
    return replace(empty, **changes)  # type: ignore[arg-type]


def flushes(*buffer_stats: BufferStats, now_s: float = 0.0) -> tuple[Flush, ...]:
    return decide(buffer_stats, LIMITS, now_s).flushes


def sources(decision: FlushDecision) -> tuple[set[int], set[int]]:
    """The partitions to flush, and those to pause."""
    return (
        {int(flush.partition.partition) for flush in decision.flushes},
        {int(chain.partition) for chain in decision.backpressure.paused},
    )


def test_empty_partition_is_never_due() -> None:
    assert decide([filling()], LIMITS, now_s=1e9) == FlushDecision((), BackpressureState())


def test_one_record_is_flushed_at_its_age_limit() -> None:
    young = filling(first_record_at_s=100.0, records=1)
    assert flushes(young, now_s=159.9) == ()
    assert flushes(young, now_s=160.0) == (Flush(source(0), FlushReason.AGE),)


def test_stream_flush_limits_override_the_writers() -> None:
    fast = FlushLimits(flush_after_s=1, flush_bytes=10, flush_records=5, memory_bytes=1)
    old = {"first_record_at_s": 0.0, "records": 1}
    one_second = [filling(0, **old), filling(1, limits=fast, **old)]
    assert flushes(*one_second, now_s=1.0) == (Flush(source(1), FlushReason.AGE),)
    sizes = [filling(0, limits=fast, parquet_bytes=10, **old), filling(1, limits=fast, **{**old, "records": 5})]
    assert [flush.reason for flush in flushes(*sizes)] == [FlushReason.BYTES, FlushReason.RECORDS]
    assert flushes(filling(0, limits=replace(LIMITS, flush_after_s=3600), **old), now_s=100.0) == ()


def test_limits_are_the_streams_or_else_the_writers() -> None:
    assert LIMITS.of(stream_of(columns="id INT")) == LIMITS
    own = LIMITS.of(stream_of(columns="id INT", flush_after="1s", flush_records=7))
    assert own == replace(LIMITS, flush_after_s=1, flush_records=7)


def test_flush_ages_are_staggered_within_the_allowed_share() -> None:
    shares = [age_fraction_of(source(partition)) for partition in range(1000)]
    assert LEAST_AGE_SHARE <= min(shares) <= max(shares) <= 1
    together = [filling(number, first_record_at_s=0.0, age_fraction=share) for number, share in enumerate(shares)]
    for second in range(48, 60):
        due = len(flushes(*together, now_s=second + 1.0)) - len(flushes(*together, now_s=second))
        assert 40 < due < 130, "a thousand partitions are flushed over twelve seconds"
    assert len(flushes(*together, now_s=60.0)) == 1000
    assert [round(share, 4) for share in shares[7:9]] == [0.9817, 0.8939], "the same in every process"


def test_bytes_and_records_limits_precede_age() -> None:
    assert flushes(filling(first_record_at_s=0.0, parquet_bytes=1000))[0].reason is FlushReason.BYTES
    assert flushes(filling(first_record_at_s=0.0, records=100))[0].reason is FlushReason.RECORDS


def test_partition_with_a_flush_in_progress_is_not_flushed_again() -> None:
    assert flushes(filling(first_record_at_s=0.0, records=10, flushing=True), now_s=1000.0) == ()


def test_partition_far_ahead_of_the_store_is_paused_alone() -> None:
    ahead = filling(0, first_record_at_s=0.0, records=100, flushing=True)
    assert sources(decide([ahead, filling(1)], LIMITS, 0.0)) == (set(), {0})
    landed = replace(ahead, flushing=False)
    assert sources(decide([landed, filling(1)], LIMITS, 0.0, BackpressureState(frozenset({source(0)})))) == ({0}, set())


def test_low_memory_flushes_only_the_largest_partitions_needed() -> None:
    buffer_stats = [
        filling(0, first_record_at_s=0.0, memory_bytes=1000),
        filling(1, first_record_at_s=0.0, memory_bytes=5000),
        filling(2, first_record_at_s=0.0, memory_bytes=3000),
    ]
    decision = decide(buffer_stats, LIMITS, now_s=0.0)
    assert decision.flushes == (Flush(source(1), FlushReason.MEMORY),)
    assert decision.backpressure == BackpressureState(frozenset({source(1)})), "small partitions stay unpaused"


def test_small_buffers_are_not_flushed_in_place_of_a_large_one_in_flight() -> None:
    hot = filling(0, first_record_at_s=0.0, memory_bytes=5000, flushing=True, flushing_bytes=3000)
    small = [filling(number, first_record_at_s=0.0, memory_bytes=200) for number in range(1, 9)]
    assert sources(decide([hot, *small], LIMITS, 0.0)) == (set(), {0})


def test_bytes_in_flight_pause_all_without_a_flush() -> None:
    buffer_stats = [
        filling(0, first_record_at_s=0.0, memory_bytes=3000),
        filling(1, flushing=True, flushing_bytes=9000),
    ]
    assert sources(decide(buffer_stats, LIMITS, 0.0)) == (set(), {0, 1})


def test_reading_resumes_only_below_the_memory_limit_with_a_margin() -> None:
    def full(used: int, *, before: bool) -> bool:
        leaving = filling(flushing=True, flushing_bytes=used)
        return decide([leaving], LIMITS, 0.0, BackpressureState(is_full=before)).backpressure.is_full

    assert not full(10_000, before=False)
    assert full(10_001, before=False)
    assert full(9000, before=True)
    assert not full(8000, before=True)


def test_large_partition_resumes_after_its_flush_or_with_free_memory() -> None:
    before = BackpressureState(frozenset({source(0)}))
    leaving = filling(0, flushing=True, flushing_bytes=7500)
    assert sources(decide([leaving], LIMITS, 0.0, before))[1] == {0}
    assert sources(decide([replace(leaving, flushing_bytes=6000)], LIMITS, 0.0, before))[1] == set()
    assert sources(decide([filling(0), filling(1, memory_bytes=5900)], LIMITS, 0.0, before))[1] == set()


def test_full_memory_is_always_flushed_down() -> None:
    """Otherwise, reading would stay paused until the buffers reach their age limit."""
    for count in (1, 2, 3, 7, 100):
        buffer_stats = [filling(number, first_record_at_s=0.0, memory_bytes=10_100 // count) for number in range(count)]
        decision = decide(buffer_stats, LIMITS, 0.0)
        out = {flush.partition for flush in decision.flushes}
        assert sum(stat.memory_bytes for stat in buffer_stats if stat.partition not in out) <= LIMITS.memory_bytes * 0.6
        assert decision.backpressure.is_full


def test_buffer_larger_than_the_memory_limit_is_flushed_alone() -> None:
    decision = decide([filling(0, first_record_at_s=0.0, memory_bytes=50_000), filling(1)], LIMITS, 0.0)
    assert sources(decision) == ({0}, {0, 1})
    after = decide([filling(0), filling(1)], LIMITS, 0.0, decision.backpressure)
    assert after == FlushDecision((), BackpressureState())
