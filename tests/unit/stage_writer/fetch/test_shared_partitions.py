"""A Kafka partition that several chains read: it is fetched once, and each chain has its own position."""

import pytest

from common.settings import StartAt
from common.spans import Position, Topic
from common.stage.markers import LastRecord
from stage_writer.fetch.shared.partition import FIRST_WITHIN_S, SLICE_S, ChainReader, SharedPartition
from stage_writer.ports import OUT_OF_RANGE, TRUNCATED
from tests.builders import settings_of
from tests.fakes.shared_topics import ALONE, CHAINS, CLICKS, Log, Writer

B, C = CHAINS[1:]


def writer_at(*positions: int, records: int = 20, at_once: int = 3, starting: tuple[int, ...] = ()) -> Writer:
    """A writer whose chains begin at these positions, with the record before each of them."""
    writer = Writer(len(positions), at_once, starting=starting)
    writer.log.append(records)
    for chain, position in zip(CHAINS, positions, strict=False):
        state = writer.chains[chain]
        state.position = position
        state.last = LastRecord(position - 1, writer.log.records[position - 1], None) if position else None
    writer.broker.assign(CLICKS, ALONE)
    return writer


def test_batch_fetched_once_is_given_to_each_chain_without_a_copy() -> None:
    writer = writer_at(5, 5, 5)
    polled = writer.poll()
    assert [batch.partition for batch in polled.batches] == list(CHAINS)
    first = polled.batches[0]
    assert all(batch.values is first.values and batch.offsets is first.offsets for batch in polled.batches)
    writer.drain()
    assert writer.broker.seeks == 0


def test_topic_with_one_chain_passes_through() -> None:
    writer = writer_at(0, 0)
    writer.broker.logs[ALONE].append(2)
    (batch,) = (batch for batch in writer.poll().batches if batch.partition == ALONE)
    assert batch.offsets.tolist() == [0, 1]
    writer.source.pause([ALONE])
    assert writer.broker.paused == {ALONE}
    writer.source.resume([ALONE])
    assert writer.broker.paused == set()
    writer.source.seek(ALONE, Position(1))
    assert writer.broker.positions[ALONE] == 1


def test_chains_at_different_positions_meet_at_the_leading_one() -> None:
    writer = writer_at(14, 2, at_once=4)
    for _ in range(9):
        writer.poll(0.0)
    assert writer.chains[B].position == writer.log.end
    assert writer.chains[CLICKS].read == writer.chains[B].read[-6:]
    assert writer.broker.seeks == 0, "they meet at the same record, so nothing is read twice"


def test_chain_far_behind_delays_the_other_by_at_most_a_slice() -> None:
    writer = writer_at(2_000, 0, records=2_000, at_once=10)
    for _ in range(200):
        writer.log.append(1)
        writer.poll(SLICE_S / 10)
        behind = writer.log.end - writer.chains[CLICKS].position
        assert behind <= 13, "the first chain waits for the other to catch up"
    assert writer.chains[B].position > 1_400, "the other one gets most of the time"
    assert writer.broker.seeks < 50
    for _ in range(200):
        writer.poll(SLICE_S / 10)
    assert writer.chains[B].position == writer.log.end
    seeks = writer.broker.seeks
    for _ in range(50):
        writer.log.append(1)
        writer.poll(SLICE_S)
    assert writer.broker.seeks == seeks, "once they have met they are read together"


def test_every_chain_progresses_among_many() -> None:
    writer = writer_at(9_000, 4_000, 10, records=9_000, at_once=5)
    for _ in range(200):
        writer.log.append(1)
        before = {chain: state.position for chain, state in writer.chains.items()}
        for _ in range(40):
            writer.poll(SLICE_S / 10)
        assert all(writer.chains[chain].position > before[chain] for chain in CHAINS)


def test_paused_chain_resumes_at_its_own_position_at_once() -> None:
    writer = writer_at(0, 0)
    writer.poll()
    writer.pause(B)
    for _ in range(9):
        writer.poll()
    assert writer.chains[CLICKS].end == 20
    assert writer.chains[B].position == 3
    writer.resume(B)
    assert [batch.partition for batch in writer.poll().batches] == [B], "the first chain has nothing to wait for"
    writer.drain()
    assert writer.chains[B].read == writer.chains[CLICKS].read


def test_pausing_all_chains_stops_fetching_without_a_seek() -> None:
    writer = writer_at(0, 0)
    for _ in range(3):
        writer.poll()
        for chain in (CLICKS, B):
            writer.pause(chain)
        assert writer.poll().batches == ()
        assert writer.broker.paused == {CLICKS}
        for chain in (CLICKS, B):
            writer.resume(chain)
    writer.drain()
    assert writer.broker.seeks == 0


def test_end_is_reported_once_per_chain_and_again_after_a_pause() -> None:
    writer = writer_at(20, 20)
    assert writer.poll().ends == {CLICKS: Position(20), B: Position(20), ALONE: Position(0)}
    writer.pause(B)
    assert writer.poll().ends == {}
    writer.resume(B)
    assert writer.poll().ends == {B: Position(20)}
    assert writer.poll().ends == {}


def test_retention_that_passes_one_chain_stops_only_that_chain() -> None:
    writer = writer_at(15, 2)
    writer.log.retain(8)
    assert writer.poll().faults == (), "the error may be from the previous position"
    for _ in range(5):
        writer.poll()
    (fault,) = writer.faults
    assert (fault.partition, fault.reason) == (B, OUT_OF_RANGE)
    assert fault.remedy == "--topic clicks@b --partition 0"
    assert writer.chains[CLICKS].read == list(range(16, 21))
    writer.start(B, 8)  # an operator's skip
    writer.drain()
    assert writer.chains[B].read == list(range(9, 21))


@pytest.mark.parametrize("end", [10, 17])
def test_lost_records_stop_only_the_chains_that_had_them(end: int) -> None:
    """The record before the first chain's position is lost, and others may be in its place."""
    writer = writer_at(20, 3, at_once=30)
    writer.truncate(end)
    writer.log.append(12)
    writer.poll()
    assert writer.chains[B].position == writer.log.end
    assert writer.faults == []
    for _ in range(3):
        writer.poll(SLICE_S)
    assert [(fault.partition, fault.reason) for fault in writer.faults] == [(CLICKS, TRUNCATED)]


def test_records_lost_by_one_chain_do_not_stop_another_at_the_same_position() -> None:
    writer = writer_at(20, 20)
    writer.poll()
    state = writer.chains[B]
    state.last, state.spoiled, state.may_fail = LastRecord(19, 99, None), True, True
    writer.pauses_failed = False
    writer.start(B)
    for _ in range(4):
        writer.poll()
    assert [(fault.partition, fault.reason) for fault in writer.faults] == [(B, TRUNCATED)]
    writer.log.append(3)
    writer.poll()
    assert writer.chains[CLICKS].read == [21, 22, 23]
    writer.drain()
    assert [fault.partition for fault in writer.faults] == [B, B], "only that chain fails again"


def test_chains_with_different_last_records_at_one_position_are_read_together() -> None:
    writer = writer_at(20, 20)
    writer.chains[B].last = LastRecord(17, 18, None)
    writer.start(B)
    for _ in range(5):
        writer.poll()
    assert writer.broker.seeks == 1
    writer.log.append(3)
    assert {batch.partition for batch in writer.poll().batches} == {CLICKS, B}


def partition_at(*positions: int) -> SharedPartition:
    """A partition with chains at these positions, being read for the first one."""
    chains = [
        ChainReader(chain, Position(position), paused=False) for chain, position in zip(CHAINS, positions, strict=False)
    ]
    shared = SharedPartition(CLICKS, chains)
    shared.move_to(chains[0], 0.0)
    return shared


def test_end_counts_until_more_is_read_or_reading_stops() -> None:
    log = Log()
    log.append(30)
    shared = partition_at(0)
    assert [len(batch) for batch in shared.take(log.batch(CLICKS, 0, 20))] == [20]
    shared.reach_end(Position(10))
    assert (shared.position, shared.new_ends()) == (20, {}), "the end was reported before the last batch was read"
    shared.reach_end(Position(22))
    assert shared.take(log.batch(CLICKS, 22, 3))
    assert shared.new_ends() == {}
    shared.reach_end(Position(25))
    shared.stop()
    assert shared.new_ends() == {}, "the end may move while nothing is read"


def test_slice_starts_with_its_first_record() -> None:
    log = Log()
    log.append(30)
    shared = partition_at(0, 20)
    assert shared.next_chain(0.0) is None
    assert shared.next_chain(FIRST_WITHIN_S - 1) is None
    assert shared.take(log.batch(CLICKS, 0, 3))
    assert shared.next_chain(FIRST_WITHIN_S - 1 + SLICE_S / 2) is None
    assert shared.next_chain(FIRST_WITHIN_S - 1 + SLICE_S) is shared.chains[1]


def test_chain_whose_records_do_not_arrive_yields_after_a_timeout() -> None:
    shared = partition_at(0, 20)
    assert shared.next_chain(FIRST_WITHIN_S) is shared.chains[1]


def test_fault_concerns_the_chains_being_read_if_the_target_is_paused() -> None:
    log = Log()
    log.append(30)
    shared = partition_at(10, 10)
    first, second = shared.chains
    shared.take(log.batch(CLICKS, 10, 3))
    first.paused = True
    shared.take(log.batch(CLICKS, 13, 3))
    assert shared.fail() == [second]
    assert (first.position, second.position) == (13, None)


def test_fault_from_the_position_before_a_move_concerns_no_chain() -> None:
    log = Log()
    log.append(30)
    shared = partition_at(0, 20)
    first, second = shared.chains
    shared.move_to(second, 1.0)
    assert shared.fail() == []
    assert shared.position is None
    shared.move_to(second, 2.0)
    assert [batch.partition for batch in shared.take(log.batch(CLICKS, 20, 3))] == [B]
    assert shared.fail() == [second], "there was no move since"
    for moved in (False, True):
        shared.move_to(first, 3.0)
        assert shared.fail() == ([first] if moved else [])


def test_chains_are_assigned_and_revoked_together_and_may_start_later() -> None:
    writer = writer_at(4, 0, starting=(1,))
    assert writer.owned == {CLICKS, B, ALONE}
    writer.poll()
    writer.poll()
    assert writer.chains[B].read == []
    writer.start(B)
    writer.drain()
    assert writer.chains[B].read == list(range(1, 21))
    writer.pause(B)
    writer.broker.revoke(CLICKS, lost=True)
    assert writer.owned == {ALONE}
    writer.starting = set()
    writer.poll()
    writer.broker.assign(CLICKS)
    writer.log.append(2)
    writer.drain()
    assert [writer.chains[chain].read[-2:] for chain in (CLICKS, B)] == [[21, 22]] * 2


def test_partition_is_paused_until_one_of_its_chains_can_start() -> None:
    writer = writer_at(4, 4, starting=(0, 1))
    writer.poll()
    assert writer.broker.paused == {CLICKS}
    writer.start(B)
    writer.poll()
    assert (writer.chains[B].position, writer.chains[CLICKS].position) == (7, 4)


def test_lookups_are_by_chain() -> None:
    writer = writer_at(4, 6, records=20)
    source = writer.source
    streams = settings_of(
        *({"app_id": name, "topics": [topic], "table": f"file:///{name}"} for name, topic in (("x", "alone"),)),
        stage={"url": "file:///s"},
    ).streams
    assert source.metadata.end_positions(streams) == {ALONE: Position(0)}
    assert source.metadata.high_watermarks([B, ALONE]) == {B: Position(20), ALONE: Position(0)}
    assert source.metadata.topic_ids([B.topic, CLICKS.topic, Topic("gone@b")]) == {
        B.topic: "id of clicks",
        CLICKS.topic: "id of clicks",
    }
    assert source.metadata.resolve(B, StartAt.EARLIEST) == 0
    assert source.metadata.ownerless([B, ALONE]) == set()
    source.report({CLICKS: Position(9)})
    assert writer.broker.committed == {CLICKS: 6}
    source.report({B: Position(12), ALONE: Position(1)})
    assert writer.broker.committed == {CLICKS: 9, ALONE: 1}
    source.close()
    assert writer.owned == set()
    assert C not in writer.owned
