"""Requests to replace a range: names and contents round-trip, and invalid ones are refused."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import MarkerError
from common.remedies import CONFIG
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.data_files import DataFileName, waiting_folder, waiting_path
from common.stage.markers import TableKind
from common.stage.replacements import (
    Replacement,
    ReplacementFile,
    ReplacementName,
    ReplacementTable,
    replacement_from_bytes,
    replacement_to_bytes,
)

ORDERS = TopicPartition(Topic("orders"), Partition(0))
PAYMENTS = TopicPartition(Topic("payments"), Partition(0))
SOURCES = st.builds(
    TopicPartition,
    st.from_regex(r"[A-Za-z0-9._-]{1,9}", fullmatch=True).map(Topic),
    st.integers(0, 9999).map(Partition),
)
REQUESTS = st.text("0123456789abcdef", min_size=32, max_size=32)
COUNTS = st.integers(0, 2**50)
START = Position(41)
URLS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)


@st.composite
def a_table(draw: st.DrawFn) -> ReplacementTable:
    """Its files are named as by a replay, or (in the first releases) in another way."""
    url = draw(URLS)
    starts = st.integers(START, START + 7).map(Position)
    names = [DataFileName(ORDERS, start, draw(REQUESTS)) for start in draw(st.lists(starts, max_size=3))]
    paths = [*(waiting_path(url, name) for name in names), waiting_folder(url) + "a.snappy.parquet"]
    files = tuple(ReplacementFile(path, draw(COUNTS), draw(COUNTS)) for path in paths)
    return ReplacementTable(url, draw(st.sampled_from(TableKind)), draw(st.text(max_size=9)), files)


def name_of() -> ReplacementName:
    return ReplacementName(ORDERS, START, "0" * 32)


@given(SOURCES, st.integers(0, 2**62), REQUESTS)
def test_request_name_round_trips(partition: TopicPartition, start: int, request: str) -> None:
    name = ReplacementName(partition, Position(start), request)
    assert ReplacementName.parse(name.path) == name
    assert ReplacementName.parse(f"{name.path}.tmp") is None
    joined = TopicPartition(Topic(f"{partition.topic}+a"), partition.partition)
    assert ReplacementName.parse(replace(name, topic_partition=joined).path) is None


@given(st.text(max_size=9), COUNTS, st.dictionaries(st.text(max_size=4), COUNTS), st.lists(a_table(), max_size=2))
def test_request_round_trips(
    text: str, count: int, dead_letters: dict[str, int], tables: list[ReplacementTable]
) -> None:
    name = name_of()
    span = Span(name.start, Position(name.start + 7))
    filtered = (Span(name.start, Position(name.start + 2)),) if count % 2 else ()
    only = (Span(name.start, Position(name.start + 1)), Span(Position(name.start + 3), span.end)) if count % 5 else ()
    exploded = count % 3
    replacement = Replacement(
        span, text, text, count, count, count, dead_letters, tuple(tables), filtered, exploded, only
    )
    assert replacement_from_bytes(name, replacement_to_bytes(name, replacement)) == replacement
    assert replacement.version == (3 if only else 2 if filtered or exploded else 1)
    assert replacement.rows == sum(file.rows for part in tables for file in part.files if part.kind is TableKind.ROWS)
    assert replacement.positions == (5 if only else None)


def having(path: str) -> dict[str, object]:
    files = [{"path": path, "rows": 1, "size_bytes": 1}]
    return {"tables": [{"url": "t", "kind": "rows", "schema": "", "files": files}]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 4}, "format version 4"),
        ({"only": [[41, 42], [42, 44], [45, 50]]}, "runs of offsets"),
        ({"only": [[42, 43], [44, 50]]}, "runs of offsets"),
        ({"only": [[41, 43], [44, 49]]}, "runs of offsets"),
        ({"partition": 1}, "its content names replace/orders/1/"),
        ({"end": 41}, "a span needs"),
        (having("a"), "not below data/t/, where files wait for t"),
        (having("data/u/a"), "not below data/t/, where files wait for t"),
        (having("data/t/../u/a"), "leaves the stage"),
        (having("data/t/s3://u/a"), "leaves the stage"),
        (having(waiting_path("t", DataFileName(PAYMENTS, START, "0"))), "belongs to payments/0 at 41"),
        (having(waiting_path("t", DataFileName(ORDERS, Position(40), "0"))), "belongs to orders/0 at 40"),
        (having(waiting_path("t", DataFileName(ORDERS, Position(51), "0"))), "belongs to orders/0 at 51"),
        ({"records": "1"}, "records"),
    ],
)
def test_invalid_request_is_refused(change: dict[str, object], words: str) -> None:
    name = name_of()
    replacement = Replacement(Span(Position(41), Position(50)), "orders", "me", 1, 9, 0)
    content = json.loads(replacement_to_bytes(name, replacement)) | change
    with pytest.raises(MarkerError, match=r"cannot be read|format version") as error:
        replacement_from_bytes(name, json.dumps(content).encode())
    assert words in str(error.value)
    if "version" not in change:
        again = f"stage-writer replay {CONFIG} --topic orders --partition 0 --from 41 --to OFFSET --yes"
        assert again in error.value.remedy
