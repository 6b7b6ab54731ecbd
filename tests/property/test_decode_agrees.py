"""The decoder ends every message as the strict decoder does: the same row, or the same refusal."""

import base64
import json
from collections.abc import Sequence
from decimal import Context, Decimal
from functools import cache

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from common.schema import (
    INTEGER_BITS,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructType,
    nullable_columns,
    parse_ddl,
    to_arrow_schema,
)
from common.settings.formats import EPOCH_DECIMALS, Forms, ValueFormat, forms_of
from stage_writer.decode.decode import Decoder
from stage_writer.decode.decode_options import STRICT, DecodeOptions
from stage_writer.decode.rejects import Refusal, Reject
from stage_writer.decode.strict import StrictDecoder
from tests.fakes.native import native_decoders

PLAIN = parse_ddl(
    "b BYTE, s SHORT, i INT, l BIGINT, f FLOAT, d DOUBLE, m DECIMAL(5,2), w DECIMAL(38,10), x DECIMAL(38,0), t STRING, "
    "y BINARY, o BOOLEAN, a DATE, z TIMESTAMP, n TIMESTAMP_NTZ, `odd \"'/~name` INT"
)
NESTED = parse_ddl(
    "p STRUCT<q: STRUCT<i: INT, t: STRING NOT NULL>, y: BINARY>, v ARRAY<INT>, vv ARRAY<ARRAY<TIMESTAMP>>, "
    "vs ARRAY<STRUCT<m: DECIMAL(5,2), d: DATE NOT NULL>>, r STRING NOT NULL"
)
MAPS = parse_ddl(
    "g MAP<STRING, INT>, i INT, h STRUCT<k: MAP<STRING, ARRAY<STRUCT<d: DATE>>>>, vm ARRAY<MAP<STRING, DECIMAL(5,2)>>"
)
EXACT = Context(prec=40)
PLAIN_MAPS = parse_ddl(
    "g MAP<STRING, INT>, `odd \"'/~name` MAP<STRING, STRING> NOT NULL, k MAP<STRING, ARRAY<STRUCT<d: DATE, i: BIGINT>>>"
)
FORMED = parse_ddl(
    "s TIMESTAMP, m TIMESTAMP_NTZ, u TIMESTAMP, es ARRAY<TIMESTAMP_NTZ>, h BINARY, hs ARRAY<BINARY>, y BINARY, "
    "j STRING, js ARRAY<STRING>, p STRUCT<j: STRING NOT NULL, t: STRING, vs: ARRAY<STRUCT<j: STRING>>>, i INT, "
    "g MAP<STRING, STRING>, k MAP<STRING, TIMESTAMP>, `odd \"'/~name` STRING"
)
SCHEMAS = (PLAIN, NESTED, MAPS, PLAIN_MAPS)
FORMS = {
    "s": "epoch_s",
    "m": "epoch_ms",
    "u": "epoch_us",
    "es.element": "epoch_ms",
    "h": "hex",
    "hs.element": "hex",
    "y": "base64",
    "j": "json",
    "js.element": "json",
    "p.j": "json",
    "p.vs.element.j": "json",
    "g.value": "json",
    "k.value": "epoch_s",
    "odd \"'/~name": "json",
}
READINGS = {
    "plain": (PLAIN, STRICT),
    "nested": (NESTED, STRICT),
    "maps": (MAPS, STRICT),
    "plain maps": (PLAIN_MAPS, STRICT),
    "formed": (FORMED, DecodeOptions(forms_of(FORMED, FORMS))),
    "plain, lenient": (PLAIN, DecodeOptions(lenient=True)),
    "nested, lenient": (NESTED, DecodeOptions(lenient=True)),
    "maps, lenient": (MAPS, DecodeOptions(lenient=True)),
    "plain maps, lenient": (PLAIN_MAPS, DecodeOptions(lenient=True)),
    "formed, lenient": (FORMED, DecodeOptions(forms_of(FORMED, FORMS), lenient=True)),
}

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.integers(-300, 300).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        [
            "1.0",
            "1e2",
            "-0",
            "-0.0",
            "0e999999999999",
            "1E400",
            "-1e400",
            "1e-400",
            "1e99999999999999999999",
            "1e-99999999999999999999",
            "3.4028235e38",
            "3.4028235677973366e38",
            "3.4028236e38",
            "1.7976931348623157e308",
            "1.7976931348623159e308",
            "127",
            "128",
            "-128",
            "-129",
            "32768",
            "2147483648",
            "-2147483649",
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775808",
            "-9223372036854775809",
            "999.99",
            "1000",
            "-999.99",
            "-1000",
            "1.500",
            "1.005",
            "1e-2",
            "1e-3",
            "123456789012345678901234567890",
            "0.00000000000000000000000000000",
            "99999999999999999999999999999999999999",
            "100000000000000000000000000000000000000",
            "1e37",
            "1e38",
            "0.1e1",
            "170141183460469231731687303715884105727",
            "340282366920938463463374607431768211456",
            "9999999999999999999999999999e10",
        ]
    ),
    st.from_regex(r"-?(0|[1-9][0-9]{0,45})(\.[0-9]{1,45})?([eE][+-]?[0-9]{1,4})?", fullmatch=True),
)
NOT_JSON = st.sampled_from(
    ["NaN", "-NaN", "nan", "Infinity", "-Infinity", "Inf", "-Inf", "01", "+1", ".5", "1.", "'x'", "", "tru", "0x1"]
)
TIMES = st.one_of(
    st.datetimes().map(str),
    st.datetimes(timezones=st.timezones()).map(lambda moment: moment.isoformat()),
    st.dates().map(str),
    st.from_regex(
        r"[0-9]{4}-(0[0-9]|1[0-3])-([0-2][0-9]|3[0-2])([Tt ]([01][0-9]|2[0-4]):[0-6][0-9]:[0-6][0-9]"
        r"(\.[0-9]{0,7}0{0,3})?([Zz]|[+-]([01][0-9]|2[0-4]):?[0-6][0-9])?)?",
        fullmatch=True,
    ),
    st.sampled_from(
        [
            *(
                "2020-02-29 2021-02-29 1900-02-29 2000-02-29 0000-01-01 0001-01-01 9999-12-31 2021-00-10 "
                "0001-01-01T00:00:00+00:01 9999-12-31T23:59:59-00:01 2021-01-01T24:00:00Z 2021-01-01T00:00:60Z "
                "2021-01-01T00:00:00.1234567Z 2021-01-01T00:00:00.123456000Z 2021-01-01T00:00:00.0000000000Z "
                "2021-01-01T00:00:00.Z 2021-01-01T00:00Z ٢٠٢١-01-01 2021-01-01T00:00:00+0530 "
                "2021-01-01T00:00:00+23:59 2021-01-01T00:00:00-2359 2021-01-01T00:00:00+24:00 "
                "2021-01-01T00:00:00-2400 2021-01-01T00:00:00.5+23:60 2021-01-01T00:00:00+05 2021-01-01T00:00:00z"
            ).split(),
            "2021-01-01 00:00:00 UTC",
            "2021-01-01\n",
            "2021-01-01T00:00:00+05:30 ",
        ]
    ),
)
TEXTS = st.one_of(
    st.text(max_size=6),
    TIMES,
    st.binary(max_size=8).map(lambda data: base64.b64encode(data).decode()),
    st.sampled_from(
        [*"aGk= aGk aGl= aG== aH== a=== ==== aG=k aGk=aGk= aG-_ NaN [Infinity]".split(), *("aGkh\n", ": NaN,")]
    ),
    NUMBERS,
    st.from_regex(r"[ +-]?[0-9]{0,4}\.?[0-9]{0,4}([eE][+-]?[0-9]{0,3})? ?", fullmatch=True),
).map(json.dumps)
ESCAPES = st.sampled_from(
    [
        *r'"\ud800" "\udc00" "\ud83d\ude00" "\u0000" "\ud800\ud800" "\\ud800" "\x"'.split(),
        *('"\t"', '"\x00"', '"é\u2028"'),
    ]
)
SPACES = st.sampled_from(["", "", "", " ", "\n", "\r\n", "\t", "\n\n  "])
OTHERS = st.one_of(
    st.sampled_from(
        [*'null true false [] {} [null] [1] {"a":1,"a":2} [1,] {"a":1,}'.split(), *('{"": null}', "[" * 40 + "]" * 40)]
    ),
    NUMBERS,
    TEXTS,
    ESCAPES,
    NOT_JSON,
)


RIGHT: dict[Primitive, st.SearchStrategy[str]] = {
    Primitive.BYTE: st.integers(-128, 127).map(str),
    Primitive.SHORT: st.integers(-(2**15), 2**15 - 1).map(str),
    Primitive.INTEGER: st.integers(-(2**31), 2**31 - 1).map(str),
    Primitive.LONG: st.integers(-(2**63), 2**63 - 1).map(str),
    Primitive.FLOAT: st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    Primitive.DOUBLE: st.floats(allow_nan=False, allow_infinity=False).map(repr),
    Primitive.STRING: st.text(max_size=6).map(json.dumps)
    | st.text(max_size=6).map(lambda t: json.dumps(t, ensure_ascii=False)),
    Primitive.BINARY: st.binary(max_size=9).map(lambda data: json.dumps(base64.b64encode(data).decode())),
    Primitive.BOOLEAN: st.sampled_from(["true", "false"]),
    Primitive.DATE: st.dates().map(lambda day: f'"{day}"'),
    Primitive.TIMESTAMP: st.datetimes(timezones=st.timezones()).map(lambda moment: f'"{moment.isoformat()[:32]}"'),
    Primitive.TIMESTAMP_NTZ: st.datetimes().map(lambda moment: f'"{moment}"'),
}
WRONG: dict[Primitive, st.SearchStrategy[str]] = {
    Primitive.STRING: ESCAPES,
    Primitive.DATE: TIMES.map(json.dumps),
    Primitive.TIMESTAMP: TIMES.map(json.dumps),
    Primitive.TIMESTAMP_NTZ: TIMES.map(json.dumps),
    Primitive.BINARY: TEXTS,
}


def _epochs(decimals: int) -> st.SearchStrategy[str]:
    microseconds = st.integers(-62_135_596_800_000_001, 253_402_300_800_000_000)
    return microseconds.map(lambda number: f"{Decimal(number).scaleb(-decimals, EXACT):f}")


EPOCHS = {each: _epochs(decimals) for each, decimals in EPOCH_DECIMALS.items()}
DOCUMENTS = st.recursive(
    st.one_of(
        st.integers(-(2**70), 2**70).map(str),
        st.text(max_size=4).map(json.dumps),
        st.sampled_from(["null", "true", '"\\\\"', '"a\\"b"', '"\\u0041"', "1.10", "1e5", '"{,]"']),
    ),
    lambda inner: st.one_of(
        st.tuples(SPACES, st.lists(st.tuples(SPACES, inner, SPACES).map("".join), max_size=3)).map(
            lambda parts: f"[{','.join(parts[1])}{parts[0] if not parts[1] else ''}]"
        ),
        st.lists(st.tuples(st.text(max_size=3).map(json.dumps), SPACES, inner, SPACES), max_size=3).map(
            lambda pairs: (
                "{" + ",".join(f"{name}{space}:{space}{item}{after}" for name, space, item, after in pairs) + "}"
            )
        ),
    ),
    max_leaves=6,
)
FORM_RIGHT: dict[ValueFormat, st.SearchStrategy[str]] = {
    ValueFormat.HEX: st.binary(max_size=5).map(lambda data: json.dumps(data.hex())),
    ValueFormat.JSON: DOCUMENTS,
    **{each: epoch | epoch.map(json.dumps) for each, epoch in EPOCHS.items()},
}
FORM_WRONG: dict[ValueFormat, st.SearchStrategy[str]] = {
    ValueFormat.JSON: OTHERS,
    **dict.fromkeys(EPOCHS, NUMBERS | TIMES.map(json.dumps)),
}
QUOTABLE = (*INTEGER_BITS, Primitive.FLOAT, Primitive.DOUBLE, Primitive.BOOLEAN)


@st.composite
def written(draw: st.DrawFn, data_type: DataType, forms: Forms, *, lenient: bool) -> str:
    """A text for a value of the type: one that its format or lenience accepts, or else its type.

    Mostly valid: the native decoder takes a message only if all of it is.
    """
    whim = draw(st.integers(0, 39))
    if forms.format in FORM_RIGHT and whim != 1:
        return draw(FORM_WRONG.get(forms.format, TEXTS) if whim == 0 else FORM_RIGHT[forms.format])
    text = draw(written_plainly(data_type, forms, lenient=lenient))
    if not lenient or whim > 19:
        return text
    if whim == 0:
        return draw(st.sampled_from([f'"{text}"', text.strip('"') or "0", f"{text}.0", f"{text}e0"]))
    if data_type is Primitive.STRING:
        return draw(DOCUMENTS)
    if data_type in QUOTABLE and text[:1] != '"':
        whole = [f"{text}.0", f'"{text}.00"'] if data_type in INTEGER_BITS else []
        return draw(st.sampled_from([f'"{text}"', *whole])) if text != "null" else text
    return text


@st.composite
def written_plainly(draw: st.DrawFn, data_type: DataType, forms: Forms, *, lenient: bool) -> str:  # noqa: PLR0911 - one for each kind of type
    """A text for a value of the type: mostly valid, sometimes null, on the edge, or of any other kind."""
    whim = draw(st.integers(0, 49))
    if whim == 0:
        return draw(OTHERS)
    if whim <= 3:
        return "null"
    match data_type:
        case StructType():
            return draw(objects(data_type, forms, lenient=lenient))
        case ArrayType(element):
            elements = st.lists(written(element, forms.at("element"), lenient=lenient), max_size=3)
            return f"[{','.join(draw(elements))}{draw(SPACES)}]"
        case MapType(_, value):
            names = st.sampled_from(["", "a", "b", "a\x00", "é"])
            values = written(value, forms.at("value"), lenient=lenient)
            pairs = list(draw(st.dictionaries(names, values, max_size=3)).items())
            pairs += [("a", "null")] if whim == 4 else []
            return f"{{{','.join(f'{json.dumps(name)}:{item}' for name, item in pairs)}}}"
        case DecimalType(precision, scale):
            least = -(10**precision) + 1
            exact = st.integers(least, -least).map(lambda digits: f"{Decimal(digits).scaleb(-scale, EXACT):f}")
            return draw(NUMBERS | NUMBERS.map(json.dumps) if whim == 5 else exact | exact.map(json.dumps))
        case Primitive():
            return draw(WRONG.get(data_type, NUMBERS) if whim == 5 else RIGHT[data_type])


@st.composite
def objects(draw: st.DrawFn, columns: StructType, forms: Forms, *, lenient: bool) -> str:
    """A JSON object near the schema: any of its fields, sometimes twice, with unknown fields among them."""
    chosen = st.lists(st.sampled_from(columns.fields), max_size=8, unique_by=lambda field: field.name)
    fields = [field for field in columns if not field.nullable and draw(st.integers(0, 29))]
    fields += [field for field in draw(chosen) if field not in fields]
    if fields and draw(st.integers(0, 39)) == 0:
        fields.append(draw(st.sampled_from(columns.fields)))
    parts = [
        f"{draw(SPACES)}{_name(draw, field.name)}{draw(SPACES)}:"
        f"{draw(SPACES)}{draw(written(field.type, forms.at(field.name), lenient=lenient))}"
        for field in fields
    ]
    if draw(st.integers(0, 9)) == 0:
        parts.append(f"{json.dumps(draw(st.text(max_size=3)))}:{draw(OTHERS)}")
    return f"{{{','.join(parts)}{draw(SPACES)}}}"


def _name(draw: st.DrawFn, name: str) -> str:
    if draw(st.integers(0, 9)) == 0:
        return '"' + "".join(f"\\u{ord(sign):04x}" for sign in name) + '"'
    return json.dumps(name)


FRAGMENTS = st.lists(
    st.sampled_from(
        [
            *'{"i":1 ,"t":"x"} {"i":1},"z":2 { } {} {"i":1} " , [ ] null 1'.split(),
            *("\n", '{"i":2}\n{"i":3}', "\\", "\ufeff", "\x00"),
        ]
    ),
    max_size=4,
).map("".join)


def messages(columns: StructType, reading: DecodeOptions) -> st.SearchStrategy[bytes | None]:
    documents = objects(columns, reading.forms, lenient=reading.lenient)
    encoded = st.tuples(SPACES, documents, SPACES).map("".join).map(lambda text: text.encode("utf-8", "replace"))
    garbage = st.one_of(FRAGMENTS.map(str.encode), st.binary(max_size=12), st.none())
    return st.integers(0, 19).flatmap(lambda whim: encoded if whim else garbage)


def batches(columns: StructType, reading: DecodeOptions = STRICT) -> st.SearchStrategy[list[bytes | None]]:
    return st.lists(messages(columns, reading), max_size=12)


@cache
def decoders_of(name: str) -> tuple[list[Decoder], StrictDecoder]:
    columns, reading = READINGS[name]
    decoders = [Decoder(columns, reading, block_bytes=400, native_decoder=decoder) for decoder in native_decoders()]
    return decoders, StrictDecoder(columns, reading)


def check(name: str, batch: Sequence[bytes | None]) -> None:
    (columns, _), (decoders, strict) = READINGS[name], decoders_of(name)
    rows, index, rejects = [], [], []
    for place, message in enumerate(batch):
        if message is None:
            continue
        outcome = strict.decode(message)
        if isinstance(outcome, Refusal):
            rejects.append(Reject(place, outcome.error_class, outcome.error))
        else:
            rows.append(outcome)
            index.append(place)
    schema = to_arrow_schema(columns)
    wanted = pa.Table.from_batches([pa.RecordBatch.from_struct_array(pa.array(rows, pa.struct(list(schema))))])
    for decoder in decoders:
        decoded = decoder.decode(batch)
        assert decoded.row_index.tolist() == index
        assert decoded.rejects == tuple(rejects)
        assert decoded.tombstones.tolist() == [place for place, message in enumerate(batch) if message is None]
        decoded.rows.validate(full=True)
        assert decoded.rows.schema.equals(to_arrow_schema(nullable_columns(columns)))
        assert repr(decoded.rows.to_pylist()) == repr(wanted.to_pylist())  # unlike equality, tells -0.0 from 0.0


@given(batches(*READINGS["plain"]))
@example([b'{"i":1', b',"t":"x"}'])
@example([b'{"i":1},"z":2', b'{"i":3}'])
@example([b'{"i":1}{"i":2}', b"", b'{"i":3}'])
@example([b'{\n"i":1\r\n}', b'{"i":3}'])
@example([b'{"u":NaN}', b'{"u":[Infinity]}', b'{"u":-Inf }', b'{"u":"NaN","t":": NaN,"}'])
@example([b'{"u":"\\ud800"}', b'{"\\ud800":1}'])
def test_plain_columns_agree(batch: list[bytes | None]) -> None:
    check("plain", batch)


@given(batches(*READINGS["nested"]))
@example([b'{"r":"","p":null}', b'{"r":"","p":{}}', b'{"r":"","p":{"q":null}}', b'{"r":"","p":{"q":{}}}', b"{}"])
@example([b'{"r":"","v":null}', b'{"r":"","v":[null,1]}', b'{"r":"","v":[]}', b'{"r":"","vv":[null,[null],[]]}'])
def test_nested_columns_agree(batch: list[bytes | None]) -> None:
    check("nested", batch)


@given(batches(*READINGS["maps"]))
@example(
    [b'{"vm":[{"a":1.10,"b":"2"},{},null,{"a":1,"a":2}]}', b'{"vm":[[{"key":"a","value":1}]]}', b'{"vm":[{"a":1,}]}']
)
def test_columns_with_maps_agree(batch: list[bytes | None]) -> None:
    check("maps", batch)


@given(batches(*READINGS["plain maps"]))
@example([b'{"odd \\"\'/~name":{},"g":[{"key":"a","value":1}]}', b'{"odd \\"\'/~name":{"\\u0061":"x","a":"y"}}'])
@example(
    [b'{"odd \\"\'/~name":{}}', b'{"odd \\"\'/~name":{"":"x"},"g":{"a":-0}}', b'{"g":{"a":1,"a":1}}', b'{"g":null}']
)
@example([b'{"odd \\"\'/~name":{},"u":[1,]}'])
def test_columns_of_plain_maps_agree(batch: list[bytes | None]) -> None:
    check("plain maps", batch)


@given(batches(*READINGS["formed"]))
@example(
    [b'{"j":{"a":[1,]}}', b'{"j":[1.10,"\\u0041" ]}', b'{"\\u006a":"x"}', b'{"j":' + b" " * 100 + b"[]}", b'{"j":null}']
)
@example([b'{"j":[1,\n2]}', b'{"j":[\r\n\t1]}'])
@example([b'{"p":{"j":{},"vs":[{"j":"\\""}, null,{"j" : [ ]}]}}', b'{"p":{"j":null}}', b'{"j":1,"j":2}'])
@example([b'{"s":253402300800}', b'{"s":-62135596800}', b'{"s":-62135596800.000001}', b'{"u":18446744073709551616}'])
def test_formats_agree(batch: list[bytes | None]) -> None:
    check("formed", batch)


@given(batches(*READINGS["plain, lenient"]))
@example([b'{"i":"7","l":1.0,"t":[1 , 2],"o":"true","d":"1.5"}', b'{"i":"1.5"}', b'{"i":"\\u0037"}', b'{"l":1e2}'])
@example(
    [b'{"i":-0.0,"t":"x"}', b'{"i":"-0"}', b'{"f":"1e400"}', b'{"t":[1,]}', b'{"t":-0.0}', b'{"i":100}', b'{"i":1.50}']
)
def test_lenient_plain_columns_agree(batch: list[bytes | None]) -> None:
    check("plain, lenient", batch)


@given(batches(*READINGS["nested, lenient"]))
def test_lenient_nested_columns_agree(batch: list[bytes | None]) -> None:
    check("nested, lenient", batch)


@given(batches(*READINGS["maps, lenient"]))
def test_lenient_columns_with_maps_agree(batch: list[bytes | None]) -> None:
    check("maps, lenient", batch)


@given(batches(*READINGS["plain maps, lenient"]))
def test_lenient_columns_of_plain_maps_agree(batch: list[bytes | None]) -> None:
    check("plain maps, lenient", batch)


@given(batches(*READINGS["formed, lenient"]))
def test_lenient_formats_agree(batch: list[bytes | None]) -> None:
    check("formed, lenient", batch)


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_any_bytes_agree(batch: list[bytes]) -> None:
    check("plain", batch)
