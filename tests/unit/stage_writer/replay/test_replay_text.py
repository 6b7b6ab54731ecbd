"""The text output of `stage-writer replay`."""

from collections import Counter

import pytest

from common.spans import Partition, Topic, TopicPartition
from stage_writer.replay.records import Range, Replayed, to_text
from tests.builders import span
from tests.fakes.streams import stream_of

SOURCE = TopicPartition(Topic("orders"), Partition(0))


@pytest.mark.parametrize(
    ("tables", "place"),
    [
        ({}, "/tables/orders"),
        ({"route": "kind", "routes": {"a": "/tables/a"}}, "the tables of orders"),
        ({"route": "kind", "route_table": "/tables/by/{route}"}, "the tables of orders"),
    ],
)
def test_text_does_not_name_one_table_for_rows_of_several(tables: dict[str, object], place: str) -> None:
    stream = stream_of(columns="id INT, kind STRING", table="/tables/orders", app_id="orders", **tables)
    replayed = Replayed(Range(SOURCE, span(0, 10)), 10, exploded=2, dead_letters=Counter(unrouted=1))
    first, _ = to_text(stream, [replayed], done=False).splitlines()
    assert first.endswith(f"10 records: 11 rows for {place}, 1 dead letter (1 unrouted), 0 tombstones")
