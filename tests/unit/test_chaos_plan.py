"""The plan of tests/chaos: what is dealt to the real processes."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal

import pytest

from tests.chaos.plan import LEASE_S, SESSION_S, Kind, plan
from tests.chaos.records import expected, number_of, record
from tests.verifier import GOOD, Sent


@pytest.mark.parametrize("seconds", [60, 75, 600])
def test_a_seed_is_a_plan_with_every_kind_of_fault_in_the_time(seconds: int) -> None:
    for seed in range(50):
        faults = plan(seed, seconds)
        assert faults == plan(seed, seconds)
        assert {fault.kind for fault in faults} == set(Kind)
        times = [fault.at_s for fault in faults]
        assert times == sorted(times)
        assert times[0] > 0
        assert times[-1] < seconds * 1.1


def test_a_pause_makes_a_zombie() -> None:
    faults = [fault for seed in range(20) for fault in plan(seed, 600)]
    least = {Kind.WRITER_PAUSED: SESSION_S, Kind.LOADER_PAUSED: LEASE_S}
    for kind, seconds in least.items():
        assert min(fault.lasts_s for fault in faults if fault.kind is kind) > seconds + 1
    assert min(Counter(fault.kind for fault in faults).values()) > 20 * 3


def test_a_record_is_always_the_same_and_says_its_number() -> None:
    kinds: Counter[bytes] = Counter()
    for number in range(2000):
        one = record(7, number)
        assert one == record(7, number)
        sent = Sent(("orders", one.partition, number), 0, one.key, one.value)
        assert number_of(sent) == number
        kinds[one.key if one.value is not None else b"gone"] += 1
        if one.key == GOOD:
            assert one.value is not None
            content = json.loads(one.value)
            row = expected(sent)
            assert (row["n"], row["amount"]) == (number, Decimal(content["amount"]))
    assert len(kinds) == 9
    assert kinds[b"gone"] == 65
