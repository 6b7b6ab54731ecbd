"""Each rule of the ledger and of the reconciliation, over a table's history and offsets, without a table."""

import json
from collections.abc import Iterable
from dataclasses import replace

from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.markers import TableKind
from common.tables.changes import MergedBy
from common.tables.commit_metadata import CommitMetadata, Decision, Resolved
from common.tables.counts import Counts, Replaced
from common.tables.transactions import TxnIds
from delta_loader.inspect.verify.findings import Finding, Verdict, VerifiedStream
from delta_loader.inspect.verify.ledger import Ledger
from delta_loader.inspect.verify.offset_ranges import offset_ranges
from delta_loader.inspect.verify.offsets import BUCKET, Bucket
from delta_loader.inspect.verify.reconcile import Reconciliation, walk
from delta_loader.inspect.verify.reconcile_facts import Explained, FilteredRecords, Shape, Tables
from delta_loader.tables.history import parse_version
from tests.builders import span

SOURCE = TopicPartition(Topic("orders"), Partition(0))
IDS = TxnIds("app", several_topics=False)


def add(name: str, low: int, high: int, rows: int) -> dict[str, object]:
    bounds = {"_kafka_topic": "orders", "_kafka_partition": 0}
    statistics = {
        "numRecords": rows,
        "minValues": bounds | {"_kafka_offset": low},
        "maxValues": bounds | {"_kafka_offset": high},
    }
    return {"add": {"path": name, "partitionValues": {}, "dataChange": True, "stats": json.dumps(statistics)}}


def remove(name: str) -> dict[str, object]:
    return {"remove": {"path": name, "dataChange": True}}


def quietly(action: dict[str, object]) -> dict[str, object]:
    changed: dict[str, object] = json.loads(json.dumps(action).replace('"dataChange": true', '"dataChange": false'))
    return changed


def without_offsets(name: str, rows: int) -> dict[str, object]:
    return {"add": {"path": name, "partitionValues": {}, "dataChange": True, "stats": f'{{"numRecords":{rows}}}'}}


def txn(last: int, app_id: str = "app-0") -> dict[str, object]:
    return {"txn": {"appId": app_id, "version": last}}


def loaded(
    start: int, end: int, rows: int | None = None, dead: int = 0, gone: int = 0, *, generation: int = 0
) -> CommitMetadata:
    counts = {} if rows is None else {SOURCE: Counts(rows + dead + gone, rows, gone, dead)}
    return shaped(start, end, counts, generation)


def shaped(start: int, end: int, counts: dict[TopicPartition, Counts], generation: int = 0) -> CommitMetadata:
    return CommitMetadata("c", "app", {SOURCE: span(start, end)}, None, counts, generations={SOURCE: generation})


class History:
    def __init__(self, *loads: tuple[int, int, int | None]) -> None:
        self.ledger = Ledger("t", IDS, ("orders",))
        self.version = 0
        for load in loads:
            self.load(*load)

    def commit(self, *actions: dict[str, object], operation: str = "WRITE", ours: CommitMetadata | None = None) -> None:
        information = {"operation": operation, "userMetadata": None if ours is None else ours.to_json()}
        lines = [{"commitInfo": information}, *actions]
        self.ledger.take(parse_version(self.version, "\n".join(map(json.dumps, lines)).encode()))
        self.version += 1

    def load(self, start: int, end: int, rows: int | None = None, dead: int = 0) -> None:
        metadata = loaded(start, end, rows, dead)
        self.commit(add(f"f{start}", start, end - 1, rows or 0), txn(end - 1), ours=metadata)

    def faults(self) -> list[tuple[str, int | None]]:
        return [(finding.kind, finding.version) for finding in self.ledger.findings if finding.verdict is Verdict.FAULT]


def bucket(*offsets: int) -> Bucket:
    return Bucket(0, len(offsets), sum(1 << offset for offset in set(offsets)))


def judged(
    history: History,
    rows: Iterable[int],
    kafka: Iterable[int] | None = None,
    dead: Iterable[int] = (),
    settings: Shape | None = None,
) -> list[Finding]:
    """``settings`` is the shape of the records by the stream's settings."""
    tables = Tables(history.ledger, None, "t", "d", Shape() if settings is None else settings)
    ranges = offset_ranges(history.ledger, None, SOURCE)
    spans = [span for offset_range in ranges for span in offset_range.spans]
    shape = tables.shape.of(ranges)
    left_out = FilteredRecords.in_ranges(ranges, shape)
    position = history.ledger.positions[SOURCE]
    records = [] if kafka is None else [(bucket(*kafka), Bucket(0, 0, 0))]
    seen = walk(spans, position, [bucket(*rows)], [bucket(*dead)], kafka=records, left_out=left_out)
    explained = Explained()
    report, findings = Reconciliation(tables, SOURCE, seen).of_tables(explained, Explained())
    assert report.proved is {finding.verdict for finding in findings}.isdisjoint({Verdict.FAULT, Verdict.UNPROVED})
    findings += explained.findings("t")
    findings += Reconciliation(tables, SOURCE, seen).exploded()
    return [*findings, *(Reconciliation(tables, SOURCE, seen).of_kafka(findings) if kafka is not None else ())]


def kinds(findings: Iterable[Finding]) -> list[tuple[str, str, int | None]]:
    return [(finding.verdict.value, finding.kind, finding.version) for finding in findings]


def test_gaps_and_overlaps_between_spans_are_faults() -> None:
    history = History((0, 10, 10), (10, 15, 5))
    assert history.faults() == []
    assert judged(history, range(15)) == []
    history.load(16, 20, 4)
    history.load(19, 25, 6)
    assert history.faults() == [("gap", 2), ("overlap", 3)]


def test_txn_action_that_moves_without_rows_is_a_fault() -> None:
    history = History((0, 10, 10))
    history.commit(add("ingested", 10, 19, 10), txn(19))
    history.commit(txn(29))
    history.commit(txn(5))
    assert history.faults() == [("txn_action_moved_ahead", 2), ("txn_action_set_back", 3)]
    assert ("brought_by_another_program", 1) in [(finding.kind, finding.version) for finding in history.ledger.findings]


def test_foreign_loads_without_offsets_are_unproved_and_with_missing_ones_a_fault() -> None:
    history = History()
    history.commit(add("ingested", 0, 9, 10), txn(9))
    history.commit(add("ingested too", 10, 19, 10), txn(19))
    history.commit(add("and this", 20, 29, 10), txn(29))
    history.load(30, 40, 10)
    verdicts = {finding.kind: finding for finding in judged(history, range(30, 40), kafka=range(40))}
    assert [kind for kind, finding in verdicts.items() if finding.verdict is Verdict.FAULT] == []
    assert verdicts["brought_without_offsets"].verdict is Verdict.UNPROVED
    assert [(span.start, span.end) for span in verdicts["brought_without_offsets"].spans] == [(10, 30)]
    verdicts = {finding.kind: finding for finding in judged(history, range(12, 40), kafka=range(40))}
    assert [(span.start, span.end) for span in verdicts["missing_from_tables"].spans] == [(10, 12)]


def test_commit_whose_counts_differ_from_its_files_is_a_fault() -> None:
    history = History()
    history.commit(add("f", 0, 9, 9), txn(9), ours=loaded(0, 10, 10))
    history.commit(add("g", 10, 19, 10), txn(18), ours=loaded(10, 20, 10))
    assert history.faults() == [("files_differ_from_counts", 0), ("txn_action_differs", 1)]


def test_counts_that_do_not_add_up_are_a_fault() -> None:
    history = History()
    history.commit(add("f", 0, 7, 8), txn(9), ours=shaped(0, 10, {SOURCE: Counts(10, 8, 1, 0)}))
    assert history.faults() == [("counts_do_not_add_up", 0)]


def test_optimize_that_changes_the_row_count_is_a_fault() -> None:
    for rows, faults in ((19, [("rows_changed_on_the_way", 2)]), (20, []), (21, [("rows_changed_on_the_way", 2)])):
        history = History((0, 10, 10), (10, 20, 10))
        actions = (remove("f0"), remove("f10"), add("o", 0, 19, rows))
        quiet = [quietly(action) for action in actions]
        history.commit(*quiet, operation="OPTIMIZE")
        assert history.faults() == faults


def test_missing_rows_are_classified_by_the_commit_that_removed_them() -> None:
    for operation, verdict in (("DELETE", ("noted", "deleted", 1)), ("WRITE", ("fault", "rows_removed", 1))):
        history = History((0, 10, 10))
        history.commit(remove("f0"), add("rest", 0, 7, 8), operation=operation)
        assert kinds(judged(history, range(8))) == [verdict]
    history = History((0, 10, 10))
    assert kinds(judged(history, range(8))) == [("fault", "rows_missing", 0)]


def test_delete_before_a_load_does_not_excuse_its_missing_rows() -> None:
    history = History((0, 10, 10))
    history.commit(add("theirs", 10, 19, 10))
    history.commit(remove("theirs"), operation="DELETE")
    history.load(10, 20, 10)
    assert ("fault", "rows_missing", 3) in kinds(judged(history, range(18)))


def test_delete_excuses_only_the_rows_it_removed() -> None:
    history = History((0, 10, 10))
    history.commit(remove("f0"), add("rest", 0, 8, 9), operation="DELETE")
    assert [kind for _, kind, _ in kinds(judged(history, range(8)))] == ["deleted", "more_missing_than_deleted"]


def test_uncounted_records_are_lost_unless_all_that_removed_rows_had_the_right_to() -> None:
    history = History((0, 10, None))
    history.commit(remove("f0"), add("rest", 0, 7, 8), operation="DELETE")
    assert ("not proved", "may_be_deleted", None) in kinds(judged(history, range(8), range(10)))
    history.commit(remove("rest"), add("fewer", 0, 6, 7))
    assert ("fault", "missing_from_tables", 0) in kinds(judged(history, range(7), range(10)))


def test_replaced_range_is_counted_and_not_an_overlap() -> None:
    history = History((0, 10, 10), (10, 20, 10))
    replaced = Replaced(span(5, 15), "r", Counts(10, 8, 2, 0))
    metadata = CommitMetadata("c", "app", {}, None, {}, {SOURCE: replaced})
    actions = [remove("f0"), remove("f10"), add("n", 5, 14, 8), add("c0", 0, 4, 5), add("c1", 15, 19, 5)]
    history.commit(*actions, ours=metadata)
    assert history.faults() == []
    rows = [*range(5), *range(5, 13), *range(15, 20)]
    assert judged(history, rows) == []
    assert [kind for _, kind, _ in kinds(judged(history, rows[1:]))] == ["rows_missing"]
    assert ("fault", "replaced_otherwise", 2) in kinds(judged(history, [*rows[:6], *rows[7:]]))
    assert [kind for _, kind, _ in kinds(judged(history, [*rows[:9], *range(10, 13), 14, *range(15, 20)]))] == []


def test_replaced_single_offsets_do_not_count_as_a_whole_range() -> None:
    history = History()
    history.commit(add("f", 0, 9, 6), txn(10), ours=shaped(0, 10, {SOURCE: Counts(10, 6, 4, 0)}))
    few = Replaced(span(1, 10), "r", Counts(3, 3, 0, 0), positions=3)
    history.commit(add("g", 1, 9, 3), ours=CommitMetadata("c", "app", {}, None, {}, {SOURCE: few}))
    assert few.words == "3 offsets of [1, 10)"
    assert judged(history, [0, 1, 2, 3, 4, 5, 6, 8, 9]) == []
    assert [kind for _, kind, _ in kinds(judged(history, [0, 1, 2, 3, 4, 5, 6, 8]))] == ["rows_missing"]


def test_spans_without_counts_are_unproved() -> None:
    history = History((0, 10, None))
    assert kinds(judged(history, range(7))) == [("not proved", "not_counted", None)]


def test_more_rows_than_were_loaded_are_a_fault() -> None:
    history = History()
    history.commit(add("f", 0, 9, 8), txn(9), ours=loaded(0, 10, 8, gone=2))
    assert kinds(judged(history, range(9))) == [("fault", "too_many_rows", 0)]


def test_rows_without_a_load_are_a_fault() -> None:
    history = History((0, 10, 10))
    assert kinds(judged(history, range(12))) == [("fault", "unknown_rows", None)]
    assert kinds(judged(History((5, 10, 5)), range(4, 10))) == [("fault", "unknown_rows", None)]
    cleaned = History()
    cleaned.version = 3
    cleaned.load(5, 10, 5)
    assert kinds(judged(cleaned, range(5, 12))) == [("fault", "unknown_rows", None)]


def test_topic_that_ends_before_the_table_s_position_is_a_fault() -> None:
    tables = Tables(History((0, 10, 10)).ledger, None, "t", "d", Shape())
    for end, is_fault in ((9, True), (10, False), (11, False)):
        seen = walk([span(0, 10)], Position(10), [bucket(*range(10))], [], kafka=[])
        seen.kafka_end = Position(end)
        findings = kinds(Reconciliation(tables, SOURCE, seen).of_kafka(()))
        assert (("fault", "kafka_went_back", None) in findings) is is_fault


def test_stream_that_could_not_be_verified_is_not_clean() -> None:
    assert VerifiedStream("app", "t", 1, 0).is_clean
    assert not VerifiedStream("app", "t", None, None, failure="there is no table t").is_clean


def test_recreated_topic_starts_a_new_chain() -> None:
    history = History((0, 10, 10))
    history.commit(add("n", 0, 4, 5), txn(4, "app-0@1"), ours=loaded(0, 5, 5, generation=1))
    assert (history.faults(), history.ledger.generations, history.ledger.positions[SOURCE]) == ([], {SOURCE: 1}, 5)


def test_late_commit_of_the_old_topic_does_not_move_the_new_chain() -> None:
    history = History((0, 10, 10))
    history.commit(add("n", 0, 4, 5), txn(4, "app-0@1"), ours=loaded(0, 5, 5, generation=1))
    history.load(10, 20, 10)
    history.commit(add("m", 5, 8, 4), txn(8, "app-0@1"), ours=loaded(5, 9, 4, generation=1))
    assert (history.faults(), history.ledger.positions[SOURCE]) == ([], 9)
    assert [str(load.span) for load in history.ledger.loaded[SOURCE]] == ["[0, 5)", "[5, 9)"]
    assert [(finding.kind, finding.version) for finding in history.ledger.findings] == [("older_generation", 2)]


def test_span_under_the_txn_action_of_another_generation_is_a_fault() -> None:
    history = History((0, 10, 10))
    history.commit(add("n", 10, 14, 5), txn(14), ours=loaded(10, 15, 5, generation=1))
    assert ("no_txn_action", 1) in history.faults()


def test_operator_resolution_settles_the_fault() -> None:
    for decision, position in ((Decision.REPLAY, 10), (Decision.GO_ON, 20)):
        history = History((0, 10, 10), (10, 20, 10))
        history.commit(remove("f10"), operation="RESTORE")
        assert ("fault", "rows_removed", 2) in kinds(judged(history, range(10)))
        answers = Resolved(2, decision, {SOURCE: Position(position)})
        history.commit(txn(position - 1), ours=CommitMetadata("c", "app", {}, None, answers=answers))
        history.load(position, position + 10, 10)
        assert history.faults() == []
        findings = judged(history, [*range(10), *range(position, position + 10)])
        assert kinds(findings) == ([] if decision is Decision.REPLAY else [("noted", "deleted", 2)])


def test_operator_resolution_settles_no_other_fault() -> None:
    history = History((0, 10, 10), (10, 20, 10))
    history.commit(remove("f0"))
    history.commit(remove("f10"), operation="RESTORE")
    answers = Resolved(3, Decision.REPLAY, {SOURCE: Position(15)})
    history.commit(txn(14), ours=CommitMetadata("c", "app", {}, None, answers=answers))
    assert [str(load.span) for load in history.ledger.loaded[SOURCE]] == ["[0, 10)", "[10, 15)"]
    assert ("fault", "rows_removed", 2) in kinds(judged(history, range(10, 15)))


def test_replacement_past_an_accepted_position_no_longer_counts() -> None:
    history = History((0, 10, 10), (10, 20, 10))
    replaced = Replaced(span(12, 15), "r", Counts(3, 1, 2, 0))
    history.commit(
        remove("f10"), add("n", 10, 19, 8), ours=CommitMetadata("c", "app", {}, None, {}, {SOURCE: replaced})
    )
    history.commit(remove("n"), operation="RESTORE")
    answers = Resolved(3, Decision.REPLAY, {SOURCE: Position(10)})
    history.commit(txn(9), ours=CommitMetadata("c", "app", {}, None, answers=answers))
    history.load(10, 20, 10)
    assert history.faults() == []
    assert judged(history, range(20)) == []


def test_records_missing_from_the_tables_are_named() -> None:
    history = History((0, 10, None))
    findings = judged(history, [0, 1, 2, 6, 7, 8, 9], kafka=range(12))
    (fault,) = [finding for finding in findings if finding.verdict is Verdict.FAULT]
    assert (fault.kind, fault.spans, fault.version) == ("missing_from_tables", (span(3, 6),), 0)
    assert [finding.kind for finding in judged(history, range(1, 10), kafka=range(1, 12), dead=[0])] == [
        "not_counted",
        "gone_from_kafka",
        "all_in_tables",
    ]


def test_records_from_before_the_history_are_not_claimed() -> None:
    history = History((5, 10, 5))
    older, compared = judged(history, range(5, 10), kafka=range(10))
    assert kinds([older]) == [("noted", "before_the_chain", None)]
    assert compared.text.startswith(
        "orders/0, records that Kafka has from 5 up to the table's position: each of the 5 is a row or a dead letter, "
    )
    assert compared.text.endswith(
        "timestamps compared: 0, all equal; not compared: the timestamps of 5 others and contents"
    )
    cut, cloned = History(), History()
    cut.version = 3
    cloned.commit(operation="CLONE")
    for history in (cut, cloned):
        history.load(5, 10, 5)
        older = judged(history, range(5, 10), kafka=range(10))[0]
        assert kinds([older]) == [("not proved", "missing_before_history", None)]
    history = History((0, 10, None))
    history.commit(remove("f0"), add("rest", 0, 7, 8), operation="DELETE")
    finding_kinds = [kind for _, kind, _ in kinds(judged(history, range(8), kafka=range(10)))]
    assert finding_kinds == ["not_counted", "may_be_deleted", "all_in_tables"]


def test_record_in_both_tables_is_found() -> None:
    seen = walk([], Position(10), [bucket(1, 2, 3)], [bucket(3, 4)])
    assert (seen.both.spans, seen.total, seen.dead_total) == ([span(3, 4)], 3, 2)
    twice = walk([], Position(10), [Bucket(BUCKET, 3, 0b11)], [])
    assert twice.twice.spans == [span(BUCKET, 2 * BUCKET)]
    dead_twice = walk([], Position(10), [], [Bucket(BUCKET, 3, 0b11)])
    assert dead_twice.twice_dead.spans == [span(BUCKET, 2 * BUCKET)]


def test_row_below_the_position_is_unknown_also_while_another_table_is_ahead() -> None:
    main, ahead = History((5, 10, 5)), History((5, 20, 15))
    tables = Tables(main.ledger, None, "t", "d", Shape(), routed=(ahead.ledger,))
    seen = walk([span(5, 10)], Position(10), [bucket(2, *range(5, 13))], [])
    _, findings = Reconciliation(tables, SOURCE, seen).of_tables(Explained(), Explained())
    assert [(finding.kind, finding.spans) for finding in findings] == [("unknown_rows", (span(0, 5),))]


def test_records_that_kafka_deletes_during_the_check_are_not_missing() -> None:
    kafka = [(bucket(1, 2, 5), Bucket(0, 0, 0))]
    assert walk([], Position(10), [], [], kafka=kafka, kafka_first=3).missing.spans == [span(5, 6)]


def test_filtered_records_must_match_their_count() -> None:
    history = History()
    history.commit(add("f", 0, 8, 6), txn(9), ours=shaped(0, 10, {SOURCE: Counts(10, 6, 0, 0, filtered=4)}))
    assert history.faults() == []
    (proved,) = judged(history, [0, 2, 4, 6, 7, 8], kafka=range(10))
    assert (proved.kind, "4 filtered records" in proved.text) == ("all_in_tables", True)
    # Kafka has compacted one of those, and which one is unknown.
    assert kinds(judged(history, [0, 2, 4, 6, 7, 8], kafka=range(9))) == [("proved", "all_in_tables", None)]
    # A row is gone: there are more in Kafka alone than were left out.
    findings = kinds(judged(history, [0, 2, 4, 6, 7], kafka=range(10)))
    assert findings == [("fault", "rows_missing", 0), ("fault", "missing_from_tables", 0)]
    # A DELETE does not excuse what another program removed before.
    history.commit(remove("f"), add("g", 0, 7, 5))
    history.commit(remove("g"), add("h", 0, 6, 4), operation="DELETE")
    assert ("fault", "missing_from_tables", 0) in kinds(judged(history, [0, 2, 4, 6], kafka=range(10)))


def test_filtered_records_without_counts_are_unproved() -> None:
    history = History()
    history.commit(add("f", 0, 8, 6), txn(9), ours=shaped(0, 10, {}))
    rows = [0, 2, 4, 6, 7, 8]
    findings = kinds(judged(history, rows, kafka=range(10), settings=Shape(filters=True)))
    assert findings == [("not proved", "not_counted", None), ("not proved", "filtered_uncounted", None)]
    assert ("fault", "missing_from_tables", 0) in kinds(judged(history, rows, kafka=range(10)))


def test_given_up_positions_do_not_count_as_filtered() -> None:
    history = History()
    counts = Counts(8, 6, 0, 0, (span(8, 10),), filtered=2)
    history.commit(add("f", 0, 7, 6), txn(9), ours=shaped(0, 10, {SOURCE: counts}))
    findings = kinds(judged(history, range(6), kafka=range(10)))
    assert findings == [("noted", "given_up", 0), ("proved", "all_in_tables", None)]


def test_exploded_rows_must_match_their_count() -> None:
    history = History()
    history.commit(add("f", 0, 2, 6), txn(2), ours=shaped(0, 3, {SOURCE: Counts(3, 6, 0, 0, exploded=3)}))
    assert history.faults() == []
    assert judged(history, [0, 0, 0, 1, 2, 2]) == []
    assert kinds(judged(history, [0, 0, 0, 0, 1, 2, 2])) == [("fault", "rows_twice", None)]
    assert kinds(judged(history, [0, 0, 1, 2, 2])) == [("fault", "rows_missing", None)]
    assert ("fault", "rows_missing", 0) in kinds(judged(history, [0, 0, 0, 0, 2, 2]))
    history.commit(remove("f"), add("g", 0, 2, 5), operation="DELETE")
    assert kinds(judged(history, [0, 0, 1, 2, 2])) == [("not proved", "exploded_deleted", None)]


def test_exploded_rows_are_counted_when_their_whole_range_was_replaced() -> None:
    history = History()
    history.commit(add("f", 0, 2, 6), txn(2), ours=shaped(0, 3, {SOURCE: Counts(3, 6, 0, 0, exploded=3)}))
    again = Replaced(span(0, 3), "r", Counts(3, 4, 0, 0, filtered=1, exploded=2))
    history.commit(remove("f"), add("g", 0, 2, 4), ours=CommitMetadata("c", "app", {}, None, {}, {SOURCE: again}))
    assert judged(history, [0, 0, 0, 2], kafka=range(3))[-1].kind == "all_in_tables"
    assert ("fault", "rows_twice", None) in kinds(judged(history, [0, 0, 0, 0, 2]))
    part = Replaced(span(0, 1), "r", Counts(1, 3, 0, 0, exploded=2))
    history.commit(remove("g"), add("h", 0, 2, 4), ours=CommitMetadata("c", "app", {}, None, {}, {SOURCE: part}))
    findings = kinds(judged(history, [0, 0, 0, 2]))
    assert findings == [("not proved", "not_counted", None), ("not proved", "exploded_uncounted", None)]


def test_filtered_records_are_unproved_after_dead_letters_were_cleaned_up() -> None:
    history, letters = History(), History()
    letters.ledger = Ledger("d", IDS, ("orders",), dead_letters=True)
    counts = {SOURCE: Counts(10, 6, 0, 1, filtered=3)}
    history.commit(add("f", 0, 8, 6), txn(9), ours=shaped(0, 10, counts))
    letters.commit(add("d", 9, 9, 1), txn(9), ours=shaped(0, 10, counts))
    letters.commit(remove("d"), operation="DELETE")
    tables = Tables(history.ledger, letters.ledger, "t", "d", Shape(filters=True))
    ranges = tables.offset_ranges(SOURCE)
    left_out = FilteredRecords.in_ranges(ranges, tables.shape)
    kafka = [(bucket(*range(10)), Bucket(0, 0, 0))]
    rows = [bucket(0, 2, 4, 6, 7, 8)]
    seen = walk([offset_range.span for offset_range in ranges], Position(10), rows, [], kafka=kafka, left_out=left_out)
    _, findings = Reconciliation(tables, SOURCE, seen).of_tables(Explained(), Explained())
    findings += Reconciliation(tables, SOURCE, seen).of_kafka(findings)
    assert [(finding.verdict.value, finding.kind) for finding in findings] == [
        ("noted", "deleted"),
        ("not proved", "may_be_deleted"),
    ]


def merge(history: History, start: int, end: int, rows: int, *actions: dict[str, object]) -> None:
    """A commit that merges as many events as its span has positions; the table has so many rows of them."""
    metadata = replace(loaded(start, end, end - start), merged_by=MergedBy(("id",)))
    history.commit(add(f"m{start}", start, end - 1, rows), *actions, txn(end - 1), ours=metadata)


def test_merged_events_are_not_expected_to_have_rows() -> None:
    history = History()
    merge(history, 0, 10, 4)
    merge(history, 10, 20, 6, remove("m0"))
    history.load(20, 30, 10)
    rows = [12, 14, 17, 19, *range(20, 30)]
    assert history.faults() == []
    assert kinds(judged(history, rows, kafka=range(30))) == [
        ("not proved", "merged", None),
        ("proved", "all_in_tables", None),
    ]
    findings = judged(history, rows, kafka=range(30))
    assert findings[0].spans == (span(0, 10), span(10, 20))
    # What was appended since is counted.
    lost = judged(history, rows[:-1], kafka=range(30))
    assert [(finding.kind, finding.spans) for finding in lost if finding.verdict is Verdict.FAULT] == [
        ("rows_missing", (span(20, 30),)),
        ("missing_from_tables", (span(29, 30),)),
    ]


def test_rows_appended_before_a_merge_may_be_changed_by_it() -> None:
    history = History((0, 10, 10))
    merge(history, 10, 20, 12, remove("f0"))
    assert history.faults() == []
    assert kinds(judged(history, [3, *range(10, 20)], kafka=range(20))) == [
        ("not proved", "merged", None),
        ("proved", "all_in_tables", None),
    ]


def test_commit_of_an_older_release_that_removed_rows_counts_as_a_merge() -> None:
    history = History((0, 10, 10))
    history.commit(add("m", 0, 19, 13), remove("f0"), txn(19), ours=loaded(10, 20, 10))
    assert history.faults() == []
    assert kinds(judged(history, range(13))) == [("not proved", "merged", None)]


def nameless(history: History, rows: int) -> list[tuple[str, str, int | None]]:
    """The findings for ``rows`` rows without offsets and ten rows at the offsets 10 to 20."""
    tables = Tables(history.ledger, None, "t", "d")
    seen = walk([span(0, 10), span(10, 20)], Position(20), [bucket(*range(10, 20))], [], kafka=KAFKA)
    explained = Explained()
    _, findings = Reconciliation(tables, SOURCE, seen).of_tables(explained, Explained())
    findings += Reconciliation(tables, SOURCE, seen).of_kafka(findings)
    return kinds([*findings, *explained.nameless_findings(tables, rows)])


KAFKA = [(bucket(*range(20)), Bucket(0, 0, 0))]
NAMELESS = [
    ("not proved", "no_offset_columns", None),
    ("not proved", "brought_without_offsets", None),
    ("proved", "all_in_tables", None),
]


def test_rows_without_offset_columns_are_counted_together() -> None:
    history = History()
    history.commit(without_offsets("f0", 10), txn(9), ours=loaded(0, 10, 10))
    history.load(10, 20, 10)
    assert nameless(history, 10) == [*NAMELESS, ("proved", "rows_reconciled", None)]
    assert nameless(history, 9) == [*NAMELESS, ("fault", "rows_missing", None)]
    assert nameless(history, 11) == [*NAMELESS, ("fault", "rows_without_offsets", None)]
    history.commit(without_offsets("theirs", 1))
    assert nameless(history, 11) == [*NAMELESS, ("noted", "rows_without_offsets", None)]
    history.commit(remove("theirs"), operation="DELETE")
    assert nameless(history, 9) == [*NAMELESS, ("not proved", "may_be_deleted", None)]


def test_rows_whose_files_have_offsets_do_not_count_as_rows_without() -> None:
    history = History((0, 10, 10), (10, 20, 10))
    assert ("fault", "rows_missing", 0) in nameless(history, 10)


def test_records_in_unreadable_tables_are_excused_across_commits() -> None:
    history = History()
    for start in (0, 10):
        metadata = replace(loaded(start, start + 10, 0, 10), other_tables={"gone": TableKind.DEAD_LETTERS})
        history.commit(txn(start + 9), ours=metadata)
    tables = Tables(history.ledger, None, "t", "d", unread=frozenset({"gone"}))
    seen = walk([span(0, 10), span(10, 20)], Position(20), [], [], kafka=KAFKA)
    _, findings = Reconciliation(tables, SOURCE, seen).of_tables(Explained(), Explained())
    findings += Reconciliation(tables, SOURCE, seen).of_kafka(findings)
    assert [verdict for verdict, *_ in kinds(findings)] == ["not proved", "not proved", "proved"]
