import pyarrow as pa
import pytest

from common.errors import SchemaError
from common.schema import (
    ArrayType,
    DecimalType,
    Field,
    MapType,
    Primitive,
    StructType,
    from_arrow_type,
    parse_ddl,
    schema_from_json,
    schema_to_json,
    to_arrow_schema,
    to_ddl,
)


def test_nested_column_list_is_parsed() -> None:
    schema = parse_ddl(
        "meta STRUCT<producer: STRUCT<timestamp: STRING>>, method string NOT NULL COMMENT 'GET, ''POST'', …',\n"
        "`odd name` INT -- a remark\n, amounts array<decimal(12, 2)>, /* more */ tags MAP<STRING,STRUCT<`a``b` date>>"
    )
    assert schema == StructType(
        (
            Field("meta", StructType((Field("producer", StructType((Field("timestamp", Primitive.STRING),))),))),
            Field("method", Primitive.STRING, nullable=False, metadata_json='{"comment":"GET, \'POST\', …"}'),
            Field("odd name", Primitive.INTEGER),
            Field("amounts", ArrayType(DecimalType(12, 2))),
            Field("tags", MapType(Primitive.STRING, StructType((Field("a`b", Primitive.DATE),)))),
        )
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("TINYINT", Primitive.BYTE),
        ("byte", Primitive.BYTE),
        ("Smallint", Primitive.SHORT),
        ("INTEGER", Primitive.INTEGER),
        ("LONG", Primitive.LONG),
        ("real", Primitive.FLOAT),
        ("timestamp_ltz", Primitive.TIMESTAMP),
        ("TIMESTAMP_NTZ", Primitive.TIMESTAMP_NTZ),
        ("dec", DecimalType(10, 0)),
        ("NUMERIC(5)", DecimalType(5, 0)),
        ("VARIANT", Primitive.VARIANT),
        ("struct<>", StructType(())),
    ],
)
def test_every_spelling_of_a_type_is_known(written: str, meant: object) -> None:
    assert parse_ddl(f"a {written}").fields[0].type == meant


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a STRNG", ["character 3", "`STRNG`", "STRING?"]),
        ("a", ["expected a type", "the end of the text"]),
        ("a INT,\nb-c INT", ["line 2, character 2", "'-'", "`backticks`"]),
        ("a INT b INT", ["not `b`", "commas"]),
        ("a INT, A STRING", ["`A`", "also as `a`"]),
        ("s STRUCT<x: INT, X: INT>", ["`X`", "declared twice"]),
        ("a VARCHAR(10)", ["VARCHAR", "write STRING"]),
        ("a INT64", ["INT64", "write BIGINT"]),
        ("a INT DEFAULT 5", ["DEFAULT", "create the table in Spark"]),
        ("a DECIMAL(39,2)", ["DECIMAL(39,2)", "1 to 38"]),
        ("a ARRAY<INT", ["`>`", "the end of the text"]),
        ("`a INT", ["is not closed"]),
        ("", ["empty", "at least one column"]),
        ("a INT NOT", ["NOT NULL"]),
        ("1 INT", ["a column's name"]),
        ("a INTERVAL", ["Delta has no intervals"]),
    ],
)
def test_wrong_column_list_names_the_place_and_the_remedy(text: str, parts: list[str]) -> None:
    with pytest.raises(SchemaError) as raised:
        parse_ddl(text)
    for part in parts:
        assert part in str(raised.value)
    assert raised.value.remedy


def test_repeated_name_in_a_struct_is_refused() -> None:
    with pytest.raises(SchemaError, match="declared twice"):
        StructType((Field("a", Primitive.LONG), Field("a", Primitive.LONG)))


def test_delta_schema_json_is_written_as_spark_writes_it() -> None:
    text = (
        '{"type":"struct","fields":[{"name":"id","type":"long","nullable":false,"metadata":{"comment":"né",'
        '"delta.columnMapping.id":1}},{"name":"m","type":{"type":"map","keyType":"string","valueType":{"type":"array",'
        '"elementType":"decimal(5,2)","containsNull":false},"valueContainsNull":true},"nullable":true,"metadata":{}}]}'
    )
    assert schema_to_json(schema_from_json(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '"long"',
        '{"type":"struct"}',
        '{"type":"struct","fields":[{"name":"a"}]}',
        '{"type":"struct","fields":[{"name":"a","type":"interval day","nullable":true,"metadata":{}}]}',
        '{"type":"struct","fields":[{"name":"a","type":{"type":"udt","class":"x"},"nullable":true,"metadata":{}}]}',
    ],
)
def test_invalid_schema_json_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        schema_from_json(text)


def test_arrow_types_are_exact() -> None:
    schema = parse_ddl(
        "a TIMESTAMP, b TIMESTAMP_NTZ, c DECIMAL(38,9), d BYTE NOT NULL, e ARRAY<DATE>, f MAP<STRING,FLOAT>"
    )
    assert to_arrow_schema(schema).equals(
        pa.schema(
            [
                pa.field("a", pa.timestamp("us", tz="UTC")),
                pa.field("b", pa.timestamp("us")),
                pa.field("c", pa.decimal128(38, 9)),
                pa.field("d", pa.int8(), nullable=False),
                pa.field("e", pa.list_(pa.field("element", pa.date32()))),
                pa.field("f", pa.map_(pa.string(), pa.field("value", pa.float32()))),
            ]
        )
    )
    assert StructType(tuple(Field(field.name, from_arrow_type(field.type)) for field in to_arrow_schema(schema))) == (
        parse_ddl(to_ddl(schema).replace(" NOT NULL", ""))
    )


def test_variant_is_refused_by_column() -> None:
    with pytest.raises(SchemaError, match="`v`"):
        to_arrow_schema(parse_ddl("v VARIANT"))
