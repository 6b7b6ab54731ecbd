"""Partitions that writers hold, as `delta-loader status` reads them from the writers' reports in the stage."""

import os
from pathlib import Path

import pytest

from common.cli import run
from common.clock import SystemClock
from common.spans import Position
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.idle import (
    HeldFact,
    IdleFact,
    StreamFact,
    WriterFacts,
    facts_from_bytes,
    facts_to_bytes,
    holds_of_running_writers,
    idle_path,
)
from common.stage.markers import Origin
from common.storage.store import FsspecStore
from delta_loader.__main__ import app
from delta_loader.commands import inspection as command
from delta_loader.plan.held import Held
from delta_loader.ports import in_turn
from delta_loader.stage.reading import Stage
from delta_loader.status.collecting import stream_status
from delta_loader.status.values import exit_code
from stage_writer.assignment import CHECK_HELD_EVERY_S
from tests.builders import config_file
from tests.fakes.markers import flush, put
from tests.fakes.stores import TrappedStore
from tests.unit.stage_writer.test_service import FIRST, SECOND, World
from tests.unit.test_exit_codes import Ends


def reported(world: World) -> tuple[dict[int, Held], int]:
    """The partitions that status shows as held by writers, by number, and its exit code."""
    (stream,) = world.settings.streams
    ends = {partition: Position(end) for partition, end in world.group.ends.items()}
    status = stream_status(stream, Stage(world.store, in_turn), FsspecStore, lambda _: ends)
    held = {int(each.partition.partition): each.writers_hold for each in status.partitions if each.writers_hold}
    return held, exit_code([status])


def test_partition_held_by_a_rule_is_reported_until_its_chain_moves(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 20, SECOND: 3}, expect={"known": "id <> 7"}, on_fail="hold")
    world.steps(20)
    held, code = reported(world)
    assert (list(held), code) == ([0], 3)
    assert held[0].reason == "expectation"
    assert "the record at offset 7 of orders/0 breaks a rule with on_fail: hold" in held[0].problem
    assert "bootstrap skip ⟨config⟩ --topic orders --partition 0 --to 8 --yes" in held[0].remedy
    put(world.store, flush(7, 8, 0, partition=FIRST, origin=Origin.SKIP))
    assert reported(world) == ({}, 0), "the record was skipped, and no writer runs"
    world.clock.now_s += CHECK_HELD_EVERY_S + 1
    world.steps(2, 0.0)
    (item,) = world.store.list("idle")
    assert facts_from_bytes(item.path, world.store.read(item.path) or b"").held == (), "the report follows the change"


def test_chain_without_a_marker_is_held_at_its_origin(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5}, expect={"known": "id > 2"}, on_fail="hold")
    world.steps(20)
    held, code = reported(world)
    assert (held[0].reason, code) == ("expectation", 3)
    again = ChainOrigin(Position(0), generation=1, number=1)
    world.store.create(origin_path(FIRST, 1), origin_to_bytes(again))
    assert reported(world) == ({}, 0), "the origin is of a recreated topic's chain"


def test_hold_ends_once_its_chain_ends_elsewhere_or_is_idle() -> None:
    fact = HeldFact(FIRST, Position(7), 1_000, 0, "unexpected", "it failed", "look")
    assert fact.holds(Position(7), 0, [IdleFact(FIRST, Position(7), 1_000, 0), IdleFact(SECOND, Position(7), 1_001, 0)])
    assert fact.holds(Position(7), 0, [IdleFact(FIRST, Position(6), 1_001, 0)])
    assert not fact.holds(Position(7), 0, [IdleFact(FIRST, Position(7), 1_001, 0)])
    assert not fact.holds(Position(8), 0, [])
    assert not fact.holds(Position(7), 1, [])
    assert not fact.holds(None, 0, [])


def test_hold_of_a_stopped_writer_ends_where_others_run_its_streams() -> None:
    def report(*app_ids: str, held: int | None = None) -> WriterFacts:
        facts = [HeldFact(FIRST, Position(held), 0, 0, "expectation", "it failed", "look")] if held is not None else []
        return WriterFacts((), tuple(StreamFact(app_id, 0, {}) for app_id in app_ids), tuple(facts))

    gone, minute_ms = report("orders", "payments", held=7), 60_000
    in_time = [(0, gone), (3 * minute_ms - 1, report("orders", "payments"))]
    late = [(0, gone), (3 * minute_ms, report("orders", "payments"))]
    assert (list(holds_of_running_writers(in_time)), holds_of_running_writers(late)) == ([FIRST], {})
    for others in (report("orders"), report("carts"), WriterFacts(())):
        assert list(holds_of_running_writers([(0, gone), (9 * minute_ms, others)])) == [FIRST]
    assert list(holds_of_running_writers([(0, gone)])) == [FIRST], "no other writer runs its streams"
    assert holds_of_running_writers([*late, (2 * minute_ms, report("orders", held=9))])[FIRST].position == 9


def test_status_takes_report_ages_from_the_store_s_clock(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 20, SECOND: 3}, expect={"known": "id <> 7"}, on_fail="hold")
    world.steps(20)
    world.store.write(idle_path("another"), facts_to_bytes([], [StreamFact("orders", 0, {})]))
    assert reported(world)[1] == 3
    (first, _) = sorted(world.store.list("idle"), key=lambda item: item.path == idle_path("another"))
    hour_ago_s = first.modified_ms / 1000 - 3600
    os.utime(tmp_path / "stage" / first.path, (hour_ago_s, hour_ago_s))
    assert reported(world) == ({}, 0)


def test_status_reads_the_reports_once_for_all_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, str]] = []
    store = TrappedStore(f"{tmp_path}/stage", before=lambda name, path: requests.append((name, path)))
    streams = [
        {"app_id": name, "topics": [name], "table": f"{tmp_path}/{name}", "columns": "id BIGINT"}
        for name in ("orders", "payments", "carts")
    ]
    config = config_file(tmp_path, *streams, stage={"url": f"{tmp_path}/stage"})
    store.write(idle_path("w"), facts_to_bytes([], held=[HeldFact(FIRST, Position(8), 0, 0, "known", "failed", "fix")]))
    put(store, flush(0, 8, None, partition=FIRST))
    requests.clear()
    monkeypatch.setattr(command, "stage_of", lambda _, parallel: Stage(store, parallel))
    monkeypatch.setattr(command, "BrokerEnds", Ends)
    assert run(app, ["status", str(config)]) == 3, "the reports count"
    assert [each for each in requests if each[1].startswith("idle/")] == [
        ("list", "idle/"),
        ("read", idle_path("w")),
    ]


def test_newest_report_of_a_partition_wins_and_older_releases_make_none(tmp_path: Path) -> None:
    store = FsspecStore(str(tmp_path))
    now_ms = SystemClock().wall_ms()
    facts = [
        HeldFact(FIRST, Position(7), now_ms - age, 0, reason, "it failed", "look")
        for age, reason in ((5, "new"), (9, "old"))
    ]
    store.write(idle_path("a"), facts_to_bytes([], held=facts[:1]))
    store.write(idle_path("b"), facts_to_bytes([], held=facts[1:]))
    store.write(idle_path("c"), b'{"version":1,"partitions":[],"streams":[]}')
    store.write(idle_path("d"), b"torn")
    held, _ = Stage(store, in_turn).held_by_writers()
    assert held == {FIRST: facts[0]}
    assert b"held" not in facts_to_bytes([])
    written = facts_from_bytes("idle", facts_to_bytes([], held=facts))
    assert (written.partitions, written.streams) == ((), ())
