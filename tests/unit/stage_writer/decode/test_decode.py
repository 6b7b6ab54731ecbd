import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from common.errors import SchemaError
from common.schema import CHAR_VARCHAR_KEY, Field, Primitive, StructType, nullable_columns, parse_ddl, to_arrow_schema
from common.settings.formats import forms_of
from stage_writer.decode.decode import Decoder
from stage_writer.decode.decode_options import DecodeOptions, MakeNativeDecoder
from stage_writer.decode.rejects import ErrorClass, Refusal
from stage_writer.decode.strict import StrictDecoder
from tests.builders import instance
from tests.fakes.native import native_decoders

EVERYTHING = parse_ddl(
    "b BYTE, s SHORT, i INT, l BIGINT, f FLOAT, d DOUBLE, m DECIMAL(5,2), t STRING, y BINARY, o BOOLEAN, a DATE, "
    "z TIMESTAMP, n TIMESTAMP_NTZ, v ARRAY<STRUCT<q: INT NOT NULL>>, g MAP<STRING, INT>, p STRUCT<q: STRING>"
)
REQUIRED = parse_ddl("i INT NOT NULL, p STRUCT<q: INT NOT NULL>")


def test_every_type_is_decoded_exactly() -> None:
    message = rb"""{
        "b": -128, "s": 32767, "i": -2147483648, "l": 9223372036854775807, "f": 0.1, "d": -1e-7, "m": "-1.50",
        "t": "\u0000\ud83d\ude00", "y": "/+8=", "o": true, "a": "2024-02-29",
        "z": "2020-01-01T05:30:00.123456000+05:30", "n": "2020-01-01 00:00:00.5",
        "v": [{"q": 1, "more": {}}, null], "g": {"": 1, "x": null}, "p": {"r": 1}, "unknown": [{"a": null}]}"""
    decoded = Decoder(EVERYTHING).decode([message])
    assert decoded.rejects == ()
    assert decoded.rows.schema.equals(to_arrow_schema(nullable_columns(EVERYTHING)))
    assert decoded.rows.to_pylist() == [
        {
            "b": -128,
            "s": 32767,
            "i": -(2**31),
            "l": 2**63 - 1,
            "f": 0.10000000149011612,
            "d": -1e-7,
            "m": Decimal("-1.50"),
            "t": "\x00😀",
            "y": b"\xff\xef",
            "o": True,
            "a": dt.date(2024, 2, 29),
            "z": dt.datetime(2020, 1, 1, 0, 0, 0, 123456, dt.UTC),
            "n": dt.datetime(2020, 1, 1, 0, 0, 0, 500000),  # noqa: DTZ001 - without a zone
            "v": [{"q": 1}, None],
            "g": [("", 1), ("x", None)],
            "p": {"q": None},
        }
    ]


REFUSED: list[tuple[bytes, ErrorClass, str]] = [
    (b"", ErrorClass.EMPTY, "empty"),
    (b" \n", ErrorClass.EMPTY, "empty"),
    (b'{"t":"\xff"}', ErrorClass.INVALID_UTF8, "byte 6"),
    (b'{"t":"\xed\xa0\x80"}', ErrorClass.INVALID_UTF8, "byte 6"),
    (b'{"i":1', ErrorClass.INVALID_JSON, "character"),
    (b'{"i":1,}', ErrorClass.INVALID_JSON, "character"),
    (b'{"i":1}{"i":2}', ErrorClass.INVALID_JSON, "second document"),
    (b'{"i":1}\n{"i":2}', ErrorClass.INVALID_JSON, "second document"),
    (b'{"i":1},"z":2', ErrorClass.INVALID_JSON, "second document"),
    (b'{"u":NaN}', ErrorClass.INVALID_JSON, "NaN"),
    (b'{"u":-Infinity}', ErrorClass.INVALID_JSON, "Infinity"),
    (b'{"u":"\\ud800"}', ErrorClass.INVALID_JSON, "surrogate"),
    (b'{"u":"\\uDFFF"}', ErrorClass.INVALID_JSON, "surrogate"),
    (b'{"u":"\\ud83d\\ude00"}{"i":2}', ErrorClass.INVALID_JSON, "second document"),
    (b'{"u":"\\ud83d\\ude00\t"}', ErrorClass.INVALID_JSON, "control character"),
    (b'{"u":"\\ud83d\\ude00","o":True}', ErrorClass.INVALID_JSON, "Expecting value"),
    (b'{"t":"a\tb"}', ErrorClass.INVALID_JSON, "control character"),
    (b"\xef\xbb\xbf{}", ErrorClass.INVALID_JSON, "character 0"),
    (b"{}\x00", ErrorClass.INVALID_JSON, "second document"),
    (b"1", ErrorClass.NOT_AN_OBJECT, "the number 1"),
    (b"[{}]", ErrorClass.NOT_AN_OBJECT, "an array"),
    (b"null", ErrorClass.NOT_AN_OBJECT, "null"),
    (b'{"i":1,"i":1}', ErrorClass.DUPLICATE_FIELD, "i: "),
    (b'{"i":1,"\\u0069":null}', ErrorClass.DUPLICATE_FIELD, "i: "),
    (b'{"v":[{"q":1,"q":1}]}', ErrorClass.DUPLICATE_FIELD, "v[0].q"),
    (b'{"g":{"x":1,"x":1}}', ErrorClass.DUPLICATE_FIELD, 'g["x"]'),
    (b'{"v":[{}]}', ErrorClass.MISSING_FIELD, "v[0].q"),
    (b'{"i":"7"}', ErrorClass.WRONG_TYPE, 'the string "7" where INT is declared'),
    (b'{"t":7}', ErrorClass.WRONG_TYPE, "the number 7 where STRING is declared"),
    (b'{"o":1}', ErrorClass.WRONG_TYPE, "BOOLEAN"),
    (b'{"v":{}}', ErrorClass.WRONG_TYPE, "an object where ARRAY"),
    (b'{"p":[]}', ErrorClass.WRONG_TYPE, "an array where STRUCT"),
    (b'{"i":true}', ErrorClass.WRONG_TYPE, "true"),
    (b'{"z":1600000000}', ErrorClass.WRONG_TYPE, "TIMESTAMP"),
    (b'{"i":1.5}', ErrorClass.NOT_EXACT, "1.5"),
    (b'{"i":1.0}', ErrorClass.NOT_EXACT, "1.0"),
    (b'{"l":1e2}', ErrorClass.NOT_EXACT, "1e2"),
    (b'{"m":1.555}', ErrorClass.NOT_EXACT, "DECIMAL(5,2)"),
    (b'{"m":1e-87}', ErrorClass.NOT_EXACT, "DECIMAL(5,2)"),
    (b'{"m":"\\u0031e-87"}', ErrorClass.NOT_EXACT, "DECIMAL(5,2)"),
    (b'{"z":"2020-01-01T00:00:00.1234567Z"}', ErrorClass.NOT_EXACT, "microsecond"),
    (b'{"b":128}', ErrorClass.OUT_OF_RANGE, "TINYINT"),
    (b'{"l":9223372036854775808}', ErrorClass.OUT_OF_RANGE, "BIGINT"),
    (b'{"d":1e400}', ErrorClass.OUT_OF_RANGE, "DOUBLE"),
    (b'{"f":3.5e38}', ErrorClass.OUT_OF_RANGE, "FLOAT"),
    (b'{"m":1000}', ErrorClass.OUT_OF_RANGE, "DECIMAL(5,2)"),
    (b'{"z":"0001-01-01T00:00:00+01:00"}', ErrorClass.OUT_OF_RANGE, "0001 to 9999"),
    (b'{"a":"2021-02-29"}', ErrorClass.MALFORMED, "2021-02-29"),
    (b'{"a":"2021-2-9"}', ErrorClass.MALFORMED, "YYYY-MM-DD"),
    (b'{"z":"2021-01-01"}', ErrorClass.MALFORMED, "TIMESTAMP"),
    (b'{"n":"2021-01-01T00:00:00Z"}', ErrorClass.MALFORMED, "zone"),
    (b'{"y":"/+8"}', ErrorClass.MALFORMED, "base64"),
    (b'{"m":"NaN"}', ErrorClass.MALFORMED, "plain number"),
]


@pytest.mark.parametrize(("message", "error_class", "text"), REFUSED)
def test_inexact_value_is_refused_with_its_reason(message: bytes, error_class: ErrorClass, text: str) -> None:
    outcome = instance(Refusal, StrictDecoder(EVERYTHING).decode(message))
    assert outcome.error_class is error_class
    assert text in outcome.error


def test_every_error_class_of_a_message_has_a_case() -> None:
    of_wrappings = "NOT_FRAMED UNKNOWN_SCHEMA WRONG_SCHEMA INVALID_RECORD AGAINST_SCHEMA NOT_AN_EVENT"
    of_merging = "TRUNCATED NULL_KEY REPEATED_KEY UNREADABLE_KEY NULL_SEQUENCE"
    of_later_steps = "EXPRESSION_FAILED EXPECTATION UNROUTED EXPLODES_TOO_FAR TOPOLOGY LATE"
    others = {ErrorClass[name] for names in (of_wrappings, of_merging, of_later_steps) for name in names.split()}
    assert {error_class for _, error_class, _ in REFUSED} == set(ErrorClass) - others


def test_bad_message_does_not_affect_its_neighbors() -> None:
    batch: list[bytes | None] = []
    for message, _, _ in REFUSED:
        batch += [b'{"i":1,"m":1.5}', message, None]
    decoded = Decoder(EVERYTHING).decode(batch)
    assert [(reject.index, reject.error_class) for reject in decoded.rejects] == [
        (place * 3 + 1, error_class) for place, (_, error_class, _) in enumerate(REFUSED)
    ]
    assert decoded.row_index.tolist() == list(range(0, len(batch), 3))
    assert decoded.rows["i"].to_pylist() == [1] * len(REFUSED)
    assert decoded.tombstones.tolist() == list(range(2, len(batch), 3))


def test_required_field_is_missing_only_if_its_parent_is_present() -> None:
    decoded = Decoder(REQUIRED).decode(
        [b'{"i":1}', b'{"i":1,"p":null}', b'{"i":1,"p":{}}', b'{"p":{"q":1}}', b'{"i":1,"p":{"q":2}}']
    )
    assert decoded.row_index.tolist() == [0, 1, 4]
    assert [(reject.index, reject.error_class, reject.error.split(":")[0]) for reject in decoded.rejects] == [
        (2, ErrorClass.MISSING_FIELD, "p.q"),
        (3, ErrorClass.MISSING_FIELD, "i"),
    ]
    decoded.rows.validate(full=True)


def test_pretty_printed_message_is_decoded() -> None:
    document = {"i": 1, "v": [{"q": 2}], "t": "a\nb"}
    batch = [json.dumps(document, indent=4).replace("\n", end).encode() for end in ("\n", "\r\n", "\r")]
    batch.append(b"\n\t " + batch[0] + b"\n")
    decoded = Decoder(EVERYTHING).decode(batch)
    assert decoded.row_index.tolist() == [0, 1, 2, 3]
    assert decoded.rows.select(["i", "v", "t"]).to_pylist() == [document] * 4


def test_large_messages_and_many_blocks_are_decoded() -> None:
    texts = ["x" * (10**size) for size in (0, 6, 2, 7, 1)]
    decoded = Decoder(EVERYTHING, block_bytes=1 << 16).decode([json.dumps({"t": text}).encode() for text in texts])
    assert decoded.rows["t"].to_pylist() == texts


def test_nesting_depth_is_not_limited() -> None:
    deep = b'{"i":1,"u":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    broken = b'{"i":1,"u":' + b"[" * 100_000 + b"}"
    decoded = Decoder(EVERYTHING).decode([deep, broken, deep.replace(b"1", b'"x"')])
    assert decoded.row_index.tolist() == [0]
    assert [reject.error_class for reject in decoded.rejects] == [ErrorClass.INVALID_JSON, ErrorClass.WRONG_TYPE]


def test_slices_and_large_binaries_are_decoded() -> None:
    values = [b'{"i":0}', b'{"i":1}', None, b'{"i":3}', b"bad", b'{"i":5}']
    for array in (pa.array(values, pa.binary()), pa.array(values, pa.large_binary())):
        decoded = Decoder(REQUIRED).decode(array.slice(1, 4))
        assert decoded.rows["i"].to_pylist() == [1, 3]
        assert decoded.row_index.tolist() == [0, 2]
        assert decoded.tombstones.tolist() == [1]
        assert [reject.index for reject in decoded.rejects] == [3]


def test_empty_batch_yields_no_rows() -> None:
    decoded = Decoder(EVERYTHING).decode([])
    assert decoded.rows.num_rows == 0
    assert decoded.rows.schema.equals(to_arrow_schema(nullable_columns(EVERYTHING)))
    assert Decoder(EVERYTHING).decode([None]).tombstones.tolist() == [0]


def test_long_value_is_shortened_in_its_error() -> None:
    (reject,) = Decoder(EVERYTHING).decode([b'{"i":"' + b"x" * 100_000 + b'"}']).rejects
    assert len(reject.error) < 300
    assert "(100000 characters)" in reject.error


KEPT = parse_ddl(
    "at TIMESTAMP, n TIMESTAMP_NTZ, b BINARY, j STRING, p STRUCT<js: ARRAY<STRING>>, g MAP<STRING, STRING>, i INT"
)
FORMS = {"at": "epoch_s", "n": "epoch_ms", "b": "hex", "j": "json", "p.js.element": "json", "g.value": "json"}


def test_formats_decode_values_and_keep_json_text() -> None:
    message = rb"""{"at": 1774927057.260514, "n": "1774927057260.5", "b": "00fF",
        "j": {"b" : 1.10, "a":"\u0041\n",
              "c":[ ]}, "p": {"js": [1e5, null, "x"]}, "g": {"k": {"deep": [true]}, "n": null}}"""
    decoded = Decoder(KEPT, DecodeOptions(forms_of(KEPT, FORMS))).decode([message])
    assert decoded.rejects == ()
    assert decoded.rows.to_pylist() == [
        {
            "at": dt.datetime(2026, 3, 31, 3, 17, 37, 260514, dt.UTC),
            "n": dt.datetime(2026, 3, 31, 3, 17, 37, 260500),  # noqa: DTZ001 - without a zone
            "b": b"\x00\xff",
            "j": '{"b" : 1.10, "a":"\\u0041\\n",\n              "c":[ ]}',
            "p": {"js": ["1e5", None, '"x"']},
            "g": [("k", '{"deep": [true]}'), ("n", None)],
            "i": None,
        }
    ]


@pytest.mark.parametrize(
    ("message", "error_class"),
    [
        (b'{"at":1774927057.2605141}', ErrorClass.NOT_EXACT),
        (b'{"at":1774927057260}', ErrorClass.OUT_OF_RANGE),
        (b'{"at":"2026-03-31T03:17:37Z"}', ErrorClass.MALFORMED),
        (b'{"b":"0x00"}', ErrorClass.MALFORMED),
        (b'{"j":[1,]}', ErrorClass.INVALID_JSON),
        (b'{"j":1,"j":2}', ErrorClass.DUPLICATE_FIELD),
    ],
)
def test_value_in_another_format_is_refused(message: bytes, error_class: ErrorClass) -> None:
    decoded = Decoder(KEPT, DecodeOptions(forms_of(KEPT, FORMS))).decode([b"{}", message])
    assert [(reject.index, reject.error_class) for reject in decoded.rejects] == [(1, error_class)]


LENIENT: list[tuple[bytes, dict[str, object]]] = [
    (b'{"i":"7","b":"-7"}', {"i": 7, "b": -7}),
    (b'{"l":7.0,"s":"7.00","i":7e2}', {"l": 7, "s": 7, "i": 700}),
    (b'{"d":"1.5","f":"-1e2"}', {"d": 1.5, "f": -100.0}),
    (b'{"o":"true"}', {"o": True}),
    (b'{"t":1.10}', {"t": "1.10"}),
    (b'{"t":{"a" : [1]},"p":{"q":false}}', {"t": '{"a" : [1]}', "p": {"q": "false"}}),
    (b'{"i":"\\u0037"}', {"i": 7}),
]


def test_lenient_decoding_accepts_equivalent_values() -> None:
    decoded = Decoder(EVERYTHING, DecodeOptions(lenient=True)).decode([message for message, _ in LENIENT])
    assert decoded.rejects == ()
    rows = [
        {name: row[name] for name in wanted} for row, (_, wanted) in zip(decoded.rows.to_pylist(), LENIENT, strict=True)
    ]
    assert rows == [wanted for _, wanted in LENIENT]


def test_lenient_decoding_refuses_lossy_values() -> None:
    lossy = [b'{"l":1.5}', b'{"i":"x"}', b'{"i":""}', b'{"o":1}', b'{"o":"True"}', b'{"d":"NaN"}', b'{"b":"128"}']
    lossy += [b'{"z":1600000000}', b'{"a":"2020-01-01T00:00:00Z"}', b'{"m":"1.555"}', b'{"i":"07"}']
    decoded = Decoder(EVERYTHING, DecodeOptions(lenient=True)).decode(lossy)
    assert [reject.index for reject in decoded.rejects] == list(range(len(lossy)))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (parse_ddl("v VARIANT"), "`v`"),
        (parse_ddl("a ARRAY<MAP<INT, STRING>>"), "`a[]`"),
        (parse_ddl("m MAP<STRING, VARIANT>"), "`m[]`"),
        (parse_ddl("a STRUCT<b: STRUCT<>>"), "STRUCT without fields"),
        (
            StructType((Field("c", Primitive.STRING, metadata_json=f'{{"{CHAR_VARCHAR_KEY}":"varchar(5)"}}'),)),
            "VARCHAR",
        ),
    ],
)
def test_column_types_that_json_cannot_fill_are_refused(columns: StructType, text: str) -> None:
    with pytest.raises(SchemaError) as raised:
        Decoder(columns)
    assert text in raised.value.problem
    assert raised.value.remedy


@pytest.mark.parametrize("native_decoder", native_decoders())
def test_utc_offset_is_limited_to_23_59(native_decoder: MakeNativeDecoder) -> None:
    columns = parse_ddl("at TIMESTAMP")
    offsets = ["+23:59", "-2359", "+24:00", "-24:00", "+2400", "+23:60"]
    messages = [f'{{"at": "2021-01-01T12:00:00{offset}"}}'.encode() for offset in offsets]
    decoded = Decoder(columns, native_decoder=native_decoder).decode(messages)
    assert [reject.index for reject in decoded.rejects] == [2, 3, 4, 5]
    strict = [StrictDecoder(columns).decode(message) for message in messages]
    assert [isinstance(row, Refusal) for row in strict] == [False] * 2 + [True] * 4
