"""Late claims while a loader runs, each a named history: put aside, counted, reported, and no record lost."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from common.errors import StoreError
from common.spans import Position
from common.stage.markers import Marker, MarkerName, Origin
from delta_loader.plan.plan import AnyMarker, UnreadableMarker
from delta_loader.service import LoaderService
from delta_loader.stage.stray_rules import SKEW_MS, LowEnd, MarkersToRead, NoStray, StrayBranch, lowest_branch
from delta_loader.status.values import to_json, to_text
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, status_of
from tests.fakes.markers import by_hand, chain_of, flush
from tests.fakes.staging import Staging


@pytest.fixture
def loader(staging: Staging, tables: MemoryDeltaTables) -> LoaderService:
    return loader_for(staging, tables)


def settle(staging: Staging, *starts: int) -> None:
    staging.store(staging.stage_url).delete(name(staging, start) for start in starts)


def name(staging: Staging, start: int) -> str:
    return MarkerName(staging.source(0), Position(start)).path


def starts(staging: Staging) -> list[int]:
    return sorted(int(path.rpartition("/")[2].removesuffix(".done")) for path in staging.markers())


def aside(staging: Staging) -> list[str]:
    return sorted(stored.path for stored in staging.store(staging.stage_url).list("stray/"))


def loaded_chain(staging: Staging, loader: LoaderService) -> None:
    """[0, 10), [10, 20), [20, 30), all in the table; the first two are settled."""
    for start in range(0, 30, 10):
        staging.flush(0, start, start + 10)
    loader.run_pass()
    settle(staging, 0, 10)


def late_claim(staging: Staging, start: int, end: int, previous: int | None) -> None:
    living = staging.previous.get(0)
    if previous is None:
        staging.previous.pop(0, None)
    staging.flush(0, start, end, previous=previous)
    if living is not None:
        staging.previous[0] = living


def test_late_claim_of_a_freed_position_is_put_aside_and_counted(staging: Staging, loader: LoaderService) -> None:
    loaded_chain(staging, loader)
    late_claim(staging, 10, 25, 0)
    data = staging.store(staging.stage_url).read(name(staging, 10))
    (report,) = loader.run_pass()
    assert (report.strays, report.held, report.rows) == (1, {}, 0)
    assert starts(staging) == [20]
    (copy,) = aside(staging)
    assert copy.startswith(f"stray/{name(staging, 10)}.late-")
    assert staging.store(staging.stage_url).read(copy) == data
    (report,) = loader.run_pass()
    assert report.strays == 0


def test_stray_reaching_beyond_the_table_is_removed_once_the_chain_covers_it(
    staging: Staging, loader: LoaderService, tables: MemoryDeltaTables
) -> None:
    loaded_chain(staging, loader)
    late_claim(staging, 10, 90, 0)
    staging.flush(0, 30, 80)
    (report,) = loader.run_pass()
    assert (report.strays, report.rows, starts(staging)) == (0, 50, [10, 20, 30])
    staging.flush(0, 80, 120)
    (report,) = loader.run_pass()
    assert (report.strays, report.rows, starts(staging)) == (1, 40, [20, 30, 80])
    assert tables.tables[staging.table].transactions == {"orders-0": 119}


CLAIMS: dict[str, tuple[list[tuple[int, int, int | None]], list[int]]] = {
    "by a writer that saw no chain": ([(0, 25, None)], [20]),
    "linked on freed positions, none of them the chain's": ([(0, 12, None), (12, 28, 0)], [20]),
    "with the end from which writers go on": ([(10, 25, 0), (25, 29, 10)], [10, 20, 25]),
}


@pytest.mark.parametrize(("claims", "left"), CLAIMS.values(), ids=CLAIMS)
def test_branch_of_late_claims_is_put_aside_whole_or_not_at_all(
    staging: Staging, loader: LoaderService, claims: list[tuple[int, int, int | None]], left: list[int]
) -> None:
    loaded_chain(staging, loader)
    for claim in claims:
        late_claim(staging, *claim)
    (report,) = loader.run_pass()
    assert (report.strays, starts(staging)) == (1 + len(claims) - len(left), left)


def test_branch_passed_by_the_chain_is_put_aside_with_its_far_end(
    staging: Staging, loader: LoaderService, tables: MemoryDeltaTables
) -> None:
    """A stale writer continues from its own end, and the live writer's chain passes it."""
    loaded_chain(staging, loader)
    late_claim(staging, 10, 45, 0)
    late_claim(staging, 45, 55, 10)
    for start in range(30, 80, 10):
        staging.flush(0, start, start + 10)
    (report,) = loader.run_pass()
    assert (report.strays, report.held) == (2, {})
    assert starts(staging) == [20, 30, 40, 50, 60, 70]
    assert tables.tables[staging.table].transactions == {"orders-0": 79}


def test_second_stray_at_the_same_position_is_put_aside_too(staging: Staging, loader: LoaderService) -> None:
    loaded_chain(staging, loader)
    for end in (25, 28):
        late_claim(staging, 10, end, 0)
        (report,) = loader.run_pass()
        assert report.strays == 1
    assert len(aside(staging)) == 2


def test_operator_made_markers_are_not_strays(staging: Staging, loader: LoaderService) -> None:
    """The end of a gap that an operator closed, a chain started by hand, and a chain with a lost marker."""
    staging.touch(0, 41)
    staging.flush(0, 42, 50)
    staging.flush(0, 50, 60)
    staging.flush(0, 60, 70)
    loader.run_pass()
    settle(staging, 50)
    (report,) = loader.run_pass()
    assert (report.strays, starts(staging)) == (0, [41, 42, 60])


def test_crash_between_copy_and_deletion_is_repaired_by_the_next_pass(
    staging: Staging, tables: MemoryDeltaTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_for(staging, tables)
    loaded_chain(staging, loader)
    late_claim(staging, 10, 25, 0)

    def crash(_self: object, _paths: Iterable[str]) -> StoreError | None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr("common.storage.store.FsspecStore.delete", crash)
        (report,) = loader.run_pass()
        assert report.failure is not None
    assert (starts(staging), len(aside(staging))) == ([10, 20], 1)
    (report,) = loader.run_pass()
    assert (report.failure, report.strays) == (None, 1)
    assert (starts(staging), len(aside(staging))) == ([20], 1)


def test_unreadable_stray_is_left_in_place(staging: Staging, loader: LoaderService) -> None:
    loaded_chain(staging, loader)
    staging.store(staging.stage_url).write(name(staging, 10), b"{torn")
    (report,) = loader.run_pass()
    assert (report.failure, report.strays, starts(staging)) == (None, 0, [10, 20])


def test_status_counts_markers_that_were_put_aside(staging: Staging, loader: LoaderService) -> None:
    loaded_chain(staging, loader)
    late_claim(staging, 10, 25, 0)
    loader.run_pass()
    store = staging.store(staging.stage_url)
    store.write(f"stray/{name(staging, 70)}", b"by a rewind")
    status = status_of(staging)
    assert "moved to stray/: 1 late claim, 1 rewound marker" in to_text([status])
    assert '"put_aside": {"late_claims": 1, "rewound": 1}' in str(to_json([status])).replace("'", '"')


def low_end(*written: tuple[Marker, int], known: bool = True) -> LowEnd:
    """The low end of a chain: markers and when each was written, lowest first; the table has all of them."""
    return LowEnd(
        [marker.name for marker, _ in written],
        {marker.name: modified_ms for marker, modified_ms in written},
        written[-1][0].span.end,
        {marker.name: marker for marker, _ in written if known},
    )


def test_chain_with_a_lost_marker_has_no_stray() -> None:
    below, above = flush(0, 10), flush(20, 30, 10)
    assert lowest_branch(low_end((below, 1_000), (above, 1_000))) == NoStray()
    for end in (15, 30):
        late = flush(0, end)
        assert lowest_branch(low_end((late, 1_000), (above, 1_000))) == StrayBranch((late,))


def test_marker_written_long_after_one_above_it_is_a_stray() -> None:
    """Clocks of a store's servers may differ by the skew, so a difference up to the skew is not evidence."""
    lowest, above = flush(0, 10), flush(10, 20, 0)
    assert lowest_branch(low_end((lowest, 1_000 + SKEW_MS), (above, 1_000))) == NoStray()
    assert lowest_branch(low_end((lowest, 1_001 + SKEW_MS), (above, 1_000))) == StrayBranch((lowest,))
    late = low_end((lowest, 1_001 + SKEW_MS), (flush(20, 30), 1_000), (flush(30, 40, 20), 90_000))
    assert lowest_branch(late) == StrayBranch((lowest,)), "the first written of all above it counts"


def test_marker_ending_at_the_tables_position_is_kept_while_nothing_follows() -> None:
    """After a rewind, [0, 18) was staged again, and then a request came for what was to follow the former [0, 40).

    Writers went on from that. Only [0, 18) says what a rewind to 18 needs.
    """
    again, late = flush(0, 18), flush(40, 73, 0)
    names, written_ms = [again.name, late.name], {again.name: 1_000, late.name: 1_000}
    known = {again.name: again, late.name: late}
    assert lowest_branch(LowEnd(names, written_ms, Position(18), known)) == NoStray()
    for position in (30, 40):
        assert lowest_branch(LowEnd(names, written_ms, Position(position), known)) == StrayBranch((again,))
    chain = flush(18, 40, 7)
    goes_on = low_end((again, 1_000), (chain, 1_000), (late, 1_000))
    assert lowest_branch(replace(goes_on, position=Position(18))) == StrayBranch((again,))


@pytest.mark.parametrize(
    ("witness", "is_stray"),
    [
        (flush(12, 20, 5), True),
        (flush(12, 20, 5, origin=Origin.SKIP), True),
        (flush(12, 20, 5, origin=Origin.BOOTSTRAP), False),
        (flush(12, 20, 10), False),  # a marker was lost between the two
        (flush(12, 20), False),
        (by_hand(12), False),
        (UnreadableMarker(flush(12, 20).name, "torn"), False),
        (flush(10, 20, 5), True),  # it begins where the branch ends, and continues another marker
    ],
)
def test_marker_after_a_branch_decides_whether_the_branch_is_stray(witness: AnyMarker, *, is_stray: bool) -> None:
    lowest, last = flush(0, 10), flush(20, 30, 12)
    names = [lowest.name, witness.name, last.name]
    known: dict[MarkerName, AnyMarker] = {lowest.name: lowest, witness.name: witness, last.name: last}
    branch = lowest_branch(LowEnd(names, dict.fromkeys(names, 1_000), Position(30), known))
    assert branch == (StrayBranch((lowest,)) if is_stray else NoStray())


def test_branch_longer_than_the_limit_is_left() -> None:
    """The number of markers read of a partition before its chain is loaded is limited."""
    for length in (15, 16):
        branch = chain_of(*range(0, 10 * length + 1, 10))
        end = 10 * length
        above = (flush(end + 5, end + 9, 3), flush(end + 9, end + 20, end + 5))
        result = lowest_branch(low_end(*((marker, 1_000) for marker in (*branch, *above))))
        assert result == (StrayBranch((*reversed(branch),)) if length == 15 else NoStray())


def test_branch_ending_in_an_operators_marker_is_not_a_stray() -> None:
    """It may close a gap, long after the markers above it."""
    skipped, above = flush(0, 10, origin=Origin.SKIP), flush(10, 20, 5)
    assert lowest_branch(low_end((skipped, 1_001 + SKEW_MS), (above, 1_000))) == NoStray()


def test_no_marker_is_read_when_the_lowest_is_the_oldest() -> None:
    lowest, above = flush(0, 10), flush(10, 20, 0)
    assert lowest_branch(low_end((lowest, 1_000), (above, 2_001), known=False)) == NoStray()
    assert lowest_branch(low_end((lowest, 1_000), (above, 2_000), known=False)) == MarkersToRead((lowest.name,))
    assert lowest_branch(low_end((lowest, 1_000), known=False)) == NoStray()
    beyond = replace(low_end((lowest, 1_000), (above, 1_000), known=False), position=Position(0))
    assert lowest_branch(beyond) == NoStray()
