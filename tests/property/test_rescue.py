"""The rescue column has a record's undeclared fields, exactly as the record writes them."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import starmap

import pyarrow as pa
from hypothesis import example, given, settings

from common.schema import ArrayType, DataType, MapType, StructType, parse_ddl, to_ddl
from stage_writer.decode.decode import Decoder
from stage_writer.decode.json_document import Json, Object, parse_document
from stage_writer.decode.rejects import Refusal
from stage_writer.decode.strict import StrictDecoder
from stage_writer.decode.unknown.column_names import ColumnNames
from stage_writer.decode.unknown.evolving import EvolvingDecoder, only, rounds, usable
from tests.builders import instance, required
from tests.conftest import examples
from tests.fakes.native import native_decoders
from tests.fakes.streams import stream_of
from tests.property.test_decode_agrees import MAPS, NESTED, PLAIN, PLAIN_MAPS, batches


@cache
def decoders_of(columns: StructType) -> tuple[list[Decoder], Decoder, StrictDecoder]:
    rescuing = [
        Decoder(columns, rescue_column="rest", block_bytes=400, native_decoder=decoder) for decoder in native_decoders()
    ]
    return rescuing, Decoder(columns), StrictDecoder(columns)


def unknown(value: Json, data_type: DataType) -> Json:
    """The undeclared part of a value; None if there is none."""
    match value, data_type:
        case Object(), StructType():
            known = {field.name: field.type for field in data_type}
            pairs = [(name, unknown(item, known[name]) if name in known else item, name) for name, item in value]
            return Object((name, item) for name, item, _ in pairs if item is not None or name not in known) or None
        case Object(), MapType(_, inner):
            fields = starmap(lambda name, item: (name, unknown(item, inner)), value)
            return Object((name, item) for name, item in fields if item is not None) or None
        case list(), ArrayType(element) if not isinstance(value, Object):
            items = [unknown(item, element) for item in value]
            return items if any(item is not None for item in items) else None
        case _:
            return None


def check(columns: StructType, batch: Sequence[bytes | None]) -> None:
    rescuing, plain, strict = decoders_of(columns)
    for decoder in rescuing:
        check_one(columns, decoder, plain, strict, batch)


def check_one(
    columns: StructType, rescuing: Decoder, plain: Decoder, strict: StrictDecoder, batch: Sequence[bytes | None]
) -> None:
    good = [message for message in batch if message is not None and not isinstance(strict.decode(message), Refusal)]
    decoded, without = rescuing.decode(batch), plain.decode(batch)
    assert repr(decoded.rows.drop_columns(["rest"]).to_pylist()) == repr(without.rows.to_pylist())
    assert decoded.rejects == without.rejects
    texts = decoded.rows["rest"].to_pylist()
    assert len(texts) == len(good)
    for message, text in zip(good, texts, strict=True):
        wanted = unknown(parse_document(message.decode()), columns)
        if wanted is None:
            assert text is None
        else:
            assert parse_document(required(text)) == wanted


@settings(max_examples=examples(0.6))
@given(batches(PLAIN))
@example([b'{"\\u0069":1,"I":2}', b'{"i":1}', b'{"":{}}', b"{}"])
@example([b'{"i":1}', b'{"i":2}'])
@example([b'{"i":1,"i":2}', b'{"z":"2020-01-01T00:00:00.1234567Z"}'])  # all of them refused
def test_plain_columns_are_rescued_exactly(batch: list[bytes | None]) -> None:
    check(PLAIN, batch)


@settings(max_examples=examples(0.6))
@given(batches(NESTED))
@example([b'{"r":"","p":null}', b'{"r":"","p":{"q":{"t":"","u":1}}}', b'{"r":"","vs":[null,{"d":"2020-01-01","e":0}]}'])
@example([b'{"r":"","vs":[{"d":"2020-01-01"},{"d":"2020-01-01","m":1,"D":[]}]}'])
def test_nested_columns_are_rescued_exactly(batch: list[bytes | None]) -> None:
    check(NESTED, batch)


@settings(max_examples=examples(0.5))
@given(batches(MAPS))
@example([b'{"h":{"k":{"a":[{"e":1}]},"l":2}}'])
def test_columns_with_maps_are_rescued_exactly(batch: list[bytes | None]) -> None:
    check(MAPS, batch)


@settings(max_examples=examples(0.3))
@given(batches(PLAIN_MAPS))
@example([b'{"odd \\"\'/~name":{},"k":{"a":[{"e":1},{"d":null}]}}', b'{"odd \\"\'/~name":{"x":"y"}}'])
def test_columns_of_plain_maps_are_rescued_exactly(batch: list[bytes | None]) -> None:
    check(PLAIN_MAPS, batch)


def test_rescued_text_keeps_the_record_s_spelling() -> None:
    decoder = Decoder(parse_ddl("i INT, s STRING"), rescue_column="rest")
    deep = "[" * 5000 + '"]"' + "]" * 5000
    messages = {
        '{"i":1, "\\u0078" : 1.10e+2 , "s":null}': '{"\\u0078":1.10e+2}',
        '{"big":123456789012345678901234567890.0,"s":"","list":[1 , 2]}': (
            '{"big":123456789012345678901234567890.0,"list":[1 , 2]}'
        ),
        '{"é":"\\u00e9\\/", "é":"é"}': '{"é":"\\u00e9\\/","é":"é"}',
        '{"n":' + "1" * 5000 + "}": '{"n":' + "1" * 5000 + "}",
        '{"deep":' + deep + ',"i":1,"after":{"a":"\\""}}': '{"deep":' + deep + ',"after":{"a":"\\""}}',
        '{"i":1}': None,
    }
    decoded = decoder.decode([message.encode() for message in messages])
    assert decoded.rows["rest"].to_pylist() == list(messages.values())


GAINED = parse_ddl(
    "l BIGINT, d DOUBLE, t STRING, o BOOLEAN, p STRUCT<q: BIGINT, r: DOUBLE>, v ARRAY<DOUBLE>, m STRUCT<n: BIGINT>"
)
WIDE = parse_ddl(
    "i INT, m STRUCT<a: INT, n: BIGINT>, l BIGINT, d DOUBLE, t STRING, o BOOLEAN, p STRUCT<q: BIGINT, r: DOUBLE>, "
    "v ARRAY<DOUBLE>"
)
DECLARED = parse_ddl("i INT, m STRUCT<a: INT>")
NAMES = ColumnNames(stream_of(columns=to_ddl(DECLARED), unknown_fields="evolve"), ())
WAY = usable(DECLARED, GAINED, NAMES)
RESCUING = [
    partial(Decoder, rescue_column="rest", block_bytes=400, native_decoder=native_decoder)
    for native_decoder in native_decoders()
]
NARROW = RESCUING[0](DECLARED)


@settings(max_examples=examples(0.6))
@given(batches(WIDE))
@example([b'{"i":1,"l":1}', b'{"i":1,"l":"1","d":1}', b'{"i":"1","l":1}', b'{"i":1,"d":9007199254740993,"t":""}', None])
@example([b'{"l":1,"l":2}', b'{"m":{"a":1,"n":1.5},"o":true}', b"{", b'{"p":{"q":1,"r":"x"},"v":[1,null,[]]}'])
def test_gained_column_refuses_no_record_and_takes_fitting_values(batch: list[bytes | None]) -> None:
    for make in RESCUING:
        check_gained(make, batch)


def check_gained(make: Callable[[StructType], Decoder], batch: list[bytes | None]) -> None:
    values = pa.array(batch, pa.binary())
    # A new decoder each time: its earlier records decide which columns it tries to fill.
    wide, narrow = EvolvingDecoder(DECLARED, WAY, make).decode(values), NARROW.decode(values)
    assert wide.rejects == narrow.rejects
    assert wide.row_index.tolist() == narrow.row_index.tolist()
    assert wide.tombstones.tolist() == narrow.tombstones.tolist()
    assert wide.rows["i"].to_pylist() == narrow.rows["i"].to_pylist()
    for index, row in zip(wide.row_index.tolist(), wide.rows.to_pylist(), strict=True):
        message = required(batch[index])
        rest = instance(Object, parse_document(row["rest"] or "{}"))
        kept = {name for name, _ in rest}
        for addition in WAY:
            alone = StrictDecoder(only(DECLARED, addition.path, addition.type)).decode(message)
            if len(batch) == 1 and addition.path[0] != "m" and not isinstance(alone, Refusal) and not rounds(alone):
                assert row[addition.path[0]] == alone[addition.path[0]]
                assert addition.path[0] not in kept or isinstance(addition.type, StructType)
            elif isinstance(alone, Refusal):
                assert addition.path[0] in kept
