"""Rows without offset columns (kafka_columns: off): verified by the log and by counting rows."""

import json
import uuid

import pytest

from common.settings import Stream
from common.storage.store import FsspecStore
from delta_loader.inspect.verify.findings import Verdict, VerifiedStream
from delta_loader.inspect.verify.verify import Verifier
from delta_loader.ports import in_turn
from tests.fakes.loading import settings_for
from tests.fakes.staging import Staging
from tests.unit.delta_loader.inspect.test_verify_shared import MINE, Rows, load


class Counted(Rows):
    """A table that gives only its number of rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows

    def offsets(self, *_places: tuple[str, int], stamped: bool) -> Rows:
        raise AssertionError(stamped)

    def count(self, _url: str, _version: int) -> int:
        return self._rows


@pytest.fixture
def stream() -> Stream:
    """A table with ten rows that one commit loaded."""
    settings = settings_for(Staging(f"memory://{uuid.uuid4().hex}")).streams[0]
    plain = settings.model_copy(update={"kafka_columns": False})
    store = FsspecStore(plain.table)
    store.write(f"_delta_log/{0:020d}.json", load(0, "orders", MINE))
    store.write("0.parquet", b"rows")
    return plain


def verified(stream: Stream, rows: int) -> VerifiedStream:
    return Verifier(FsspecStore, in_turn, Counted(rows), None).verify(stream)


def findings(report: VerifiedStream) -> list[tuple[str, Verdict]]:
    return [(finding.kind, finding.verdict) for finding in report.findings if finding.kind != "no_offset_columns"]


def test_matching_row_count_is_proved_but_no_partition_is(stream: Stream) -> None:
    report = verified(stream, 10)
    assert (report.failure, report.is_clean, findings(report)) == (None, True, [("rows_reconciled", Verdict.PROVED)])
    assert [
        (partition.partition, partition.position, partition.rows, partition.proved) for partition in report.partitions
    ] == [(MINE, 10, None, False)]
    (unproved,) = [finding for finding in report.findings if finding.kind == "no_offset_columns"]
    assert unproved.verdict is Verdict.UNPROVED


def test_row_count_that_differs_from_the_commits_is_a_fault(stream: Stream) -> None:
    for rows in (9, 11):
        report = verified(stream, rows)
        assert (findings(report), report.is_clean) == ([("rows_differ", Verdict.FAULT)], False)
        assert f"the table has {rows} rows, but the commits loaded 10" in report.faults[0].text


def test_row_count_is_unproved_after_another_program_changed_rows(stream: Stream) -> None:
    actions = (
        {"commitInfo": {"operation": "DELETE"}},
        {"remove": {"path": "0.parquet", "dataChange": True}},
        {"add": {"path": "rest.parquet", "stats": '{"numRecords":7}', "dataChange": True}},
    )
    store = FsspecStore(stream.table)
    store.write(f"_delta_log/{1:020d}.json", "\n".join(map(json.dumps, actions)).encode())
    store.write("rest.parquet", b"rows")
    report = verified(stream, 7)
    assert (findings(report), report.is_clean) == ([("rows_differ", Verdict.UNPROVED)], True)
    assert "another program has added or deleted rows since" in report.findings[-1].text


def test_missing_file_is_named_even_though_the_log_counts_its_rows(stream: Stream) -> None:
    FsspecStore(stream.table).delete(["0.parquet"])
    report = verified(stream, 10)
    assert [(fault.kind, fault.version, fault.files) for fault in report.faults] == [("files_gone", 0, ("0.parquet",))]
