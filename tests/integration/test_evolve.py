"""Records gain fields, and their table gains columns: two writers, one loader, read by Spark and by delta-rs."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.schema import parse_ddl, schema_to_json, to_arrow_schema
from common.schema.evolution import additions
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import StagedFile
from common.tables.commit_metadata import CommitMetadata
from delta_loader.plan.plan import TableShape
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.tables.commits import Committed, TableCommit, Target
from delta_loader.tables.file_split import SparkWrite
from devservices.kafka import KafkaCluster
from tests.builders import pipeline_config
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.producing import produce

pytestmark = [pytest.mark.broker, pytest.mark.spark]

# By Kafka partition: the two writers see other types of `meta.size`.
FIRST = (
    ['{"id": 1, "meta": {"a": 1, "size": 5}, "x": 1, "bad name": 1}', '{"id": 2, "ID": 3, "1d": {"order": true}}'],
    ['{"id": 3, "meta": {"size": 5.5}, "x": 2, "items": [{"n": 1}, {"n": 2, "new": "n"}]}', '{"id": 4, "x": null}'],
)
SECOND = (
    [
        '{"id": 5, "meta": {"a": 2, "size": 9007199254740993}, "x": 7}',
        '{"id": 6, "x": "seven", "1d": {"order": false}}',
    ],
    [
        '{"id": 7, "meta": {"size": 6}, "x": 9223372036854775808}',
        '{"id": 8, "items": [{"n": 3, "new": "m"}, {}], "late": [1, 2.5]}',
    ],
)


def load(config: Path, spark: SparkSession) -> None:
    report = in_process.load(config, spark)
    assert (report.failure, report.held) == (None, {})


def test_table_gains_the_fields_of_records(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> None:
    topic, table = new_topic(2), f"{tmp_path}/orders"
    stream = {
        "app_id": "orders",
        "topics": [topic],
        "table": table,
        "columns": "id BIGINT, meta STRUCT<a: BIGINT>, items ARRAY<STRUCT<n: BIGINT>>",
        "unknown_fields": "evolve",
    }
    config = programs.config(pipeline_config(kafka.bootstrap_servers, tmp_path, stream))
    for batch in (FIRST, SECOND):
        for partition, values in enumerate(batch):
            produce(kafka.bootstrap_servers, topic, *values, partition=partition)
        writers = [programs.start("stage-writer", "run", config, "--until-caught-up") for _ in range(2)]
        assert [writer.process.wait(600) for writer in writers] == [0, 0]
        load(config, spark)

    frame = spark.read.format("delta").load(table).drop("_kafka_topic", "_kafka_timestamp")
    types = dict(frame.dtypes)
    size = types["meta"].removeprefix("struct<a:bigint,size:").removesuffix(">")
    assert types == {
        "id": "bigint",
        "meta": f"struct<a:bigint,size:{size}>",
        "items": "array<struct<n:bigint,new:string>>",
        "_rescued": "string",
        "_kafka_partition": "int",
        "_kafka_offset": "bigint",
        "1d": "struct<order:boolean>",
        "x": "bigint",
        "late": "array<double>",
    }
    # The type that one of the two writers was the first to agree on: a value of the other one is kept as it was sent.
    sizes, rescued = {
        "bigint": ((5, None, 9007199254740993, 6), (None, '{"meta":{"size":5.5}}', None)),
        "double": ((5.0, 5.5, None, 6.0), (None, None, '{"meta":{"size":9007199254740993}}')),
    }[size]
    rows = {row["id"]: row.asDict(recursive=True) for row in frame.collect()}
    gained_values = {
        number: (row["meta"], row["items"], row["x"], row["1d"], row["_rescued"]) for number, row in rows.items()
    }
    assert gained_values == {
        1: ({"a": 1, "size": sizes[0]}, None, 1, None, '{"bad name":1}'),
        2: (None, None, None, {"order": True}, '{"ID":3}'),
        3: ({"a": None, "size": sizes[1]}, [{"n": 1, "new": None}, {"n": 2, "new": "n"}], 2, None, rescued[1]),
        4: (None, None, None, None, None),
        5: ({"a": 2, "size": sizes[2]}, None, 7, None, rescued[2]),
        6: (None, None, None, {"order": False}, '{"x":"seven"}'),
        7: ({"a": None, "size": sizes[3]}, None, None, None, '{"x":9223372036854775808}'),
        8: (None, [{"n": 3, "new": "m"}, {"n": None, "new": None}], None, None, None),
    }
    assert rows[8]["late"] == [1.0, 2.5]
    by_delta_rs = {row["id"]: row for row in DeltaTable(table).to_pyarrow_table().to_pylist()}
    for number, row in rows.items():
        assert {name: by_delta_rs[number][name] for name in row} == row

    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").select("version", "operation").collect()
    operations = [operation for _, operation in sorted(map(tuple, history))]
    assert operations[0] == "CREATE TABLE"  # with the columns of the oldest file
    before = [before for before, after in pairwise(operations) if after == "STREAMING UPDATE"]
    assert operations.count("ADD COLUMNS") == before.count("ADD COLUMNS") >= 1  # each in front of a load
    status = json.loads(programs.succeed("delta-loader", "status", config, "--json"))
    gained = {column["column"]: column["offered_by"] for column in status["streams"][0]["gained"]}
    assert gained.keys() == {
        "`1d` STRUCT<order: BOOLEAN>",
        "items.element.new STRING",
        f"meta.size {size.upper()}",
        "x BIGINT",
        "late ARRAY<DOUBLE>",
    }
    assert all(path.startswith(f"done/{topic}/") for path in gained.values())

    ask = ("--topic", topic, "--partition", "0", "--from", "0", "--to", "2")
    programs.succeed("stage-writer", "replay", config, *ask, "--yes")
    load(config, spark)
    rows = {row["id"]: row for row in spark.read.format("delta").load(table).where("id <= 2").collect()}
    assert len(rows) == 2
    assert (rows[1]["x"], rows[1]["meta"]["size"], rows[1]["_rescued"]) == (1, 5, '{"bad name":1}')
    assert (rows[2]["1d"]["order"], rows[2]["_rescued"]) == (True, '{"ID":3}')


def test_files_read_by_spark_may_lack_columns_of_the_table(spark: SparkSession, tmp_path: Path) -> None:
    older, url = (
        "id BIGINT, meta STRUCT<a: BIGINT>, items ARRAY<STRUCT<n: BIGINT>>, _kafka_offset BIGINT",
        f"{tmp_path}/t",
    )
    known = parse_ddl(older)
    gained = parse_ddl("meta STRUCT<size: DOUBLE>, items ARRAY<STRUCT<new: STRING>>, x BIGINT")
    shape, tables = TableShape(schema_to_json(known), ()), SparkDeltaTables(spark, SystemClock())
    tables.create(url, shape)
    tables.add_columns(url, additions(known, gained))
    rows = [{"id": n, "meta": {"a": n}, "items": [{"n": n}, None], "_kafka_offset": n} for n in range(4)]
    pq.write_table(pa.Table.from_pylist(rows, to_arrow_schema(known)), f"{url}/f.parquet")
    state, partition = tables.state(url), TopicPartition(Topic("t"), Partition(0))
    assert state is not None
    file = StagedFile("f.parquet", {}, (tmp_path / "t" / "f.parquet").stat().st_size, 4, "{}")
    written = SparkWrite(partition, url, shape, (file,), Position(2))
    commit = TableCommit(
        target=Target(url, state.table_id, TableShape(state.schema, ()), {}, state.version),
        app_id="a",
        files=(),
        expected={"a-0": None},
        advances={"a-0": 3},
        metadata=CommitMetadata("c", "a", {partition: Span(Position(2), Position(4))}, None),
        written=(written,),
    )
    assert isinstance(tables.commit(commit), Committed)
    rows_read = [row.asDict(recursive=True) for row in spark.read.format("delta").load(url).orderBy("id").collect()]
    assert rows_read == [
        {"id": n, "meta": {"a": n, "size": None}, "items": [{"n": n, "new": None}, None], "_kafka_offset": n, "x": None}
        for n in (2, 3)
    ]
