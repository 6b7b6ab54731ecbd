"""Messages of many partitions, in any order, end in their own partition's batch: compared with a plain loop."""

from confluent_kafka import Message
from hypothesis import example, given
from hypothesis import strategies as st

from stage_writer.decode.batch import NO_TIMESTAMP
from stage_writer.fetch.fetched import batches_of

# Runs of one partition's messages, as brokers send them: partitions follow each other, return, or do not.
RUNS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5), st.integers(1, 4)), max_size=12)


def _value(*place: str | int) -> bytes:
    return repr(place).encode()


@given(RUNS)
@example([("a", 0, 2), ("a", 1, 2), ("a", 2, 1), ("a", 3, 1), ("a", 2, 1)])  # one returns, its neighbors do not
def test_messages_are_batched_by_partition_in_order_of_arrival(
    runs: list[tuple[str, int, int]],
) -> None:
    places: list[tuple[str, int, int]] = []
    for topic, partition, count in runs:
        places += [(topic, partition, len(places) + number) for number in range(count)]
    messages = [
        Message(
            topic=place[0], partition=place[1], offset=place[2], value=repr(place).encode(), timestamp=(1, place[2])
        )
        for place in places
    ]
    expected: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset in places:
        expected.setdefault((topic, partition), []).append(offset)

    batches = batches_of(messages, with_headers=False)

    offsets = {
        (str(batch.partition.topic), int(batch.partition.partition)): batch.offsets.tolist() for batch in batches
    }
    assert offsets == expected
    assert len(batches) == len(expected)
    for (topic, partition), batch in zip(offsets, batches, strict=True):
        assert batch.values.to_pylist() == [_value(topic, partition, offset) for offset in batch.offsets.tolist()]
        assert batch.timestamps_ms.tolist() == batch.offsets.tolist()


def test_timestamp_out_of_range_is_none() -> None:
    times = [0, 1_700_000_000_000, 253_402_300_799_999, 253_402_300_800_000, 2**63 - 1, -1]
    messages = [
        Message(topic="a", partition=0, offset=offset, value=b"{}", timestamp=(1, time_ms))
        for offset, time_ms in enumerate(times)
    ]
    (batch,) = batches_of(messages, with_headers=False)
    assert batch.timestamps_ms.tolist() == [*times[:3], NO_TIMESTAMP, NO_TIMESTAMP, NO_TIMESTAMP]
