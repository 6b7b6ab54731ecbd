"""The limits of each type, one message at a time: decoded values, and refusals with their messages."""

import datetime as dt
import math
from decimal import Decimal

import pytest

from common.schema import ArrayType, DataType, Field, MapType, Primitive, StructType, parse_ddl
from common.settings.formats import forms_of
from stage_writer.decode.decode_options import STRICT, DecodeOptions
from stage_writer.decode.rejects import ErrorClass, Refusal
from stage_writer.decode.strict import StrictDecoder
from tests.builders import instance

_MANY = "1" * 81
_WRONG, _RANGE = ErrorClass.WRONG_TYPE, ErrorClass.OUT_OF_RANGE
_EXACT, _FORM = ErrorClass.NOT_EXACT, ErrorClass.MALFORMED
_NO_YEAR = "is outside the years 0001 to 9999, for TIMESTAMP as an epoch"
_NO_EPOCH = "is out of range for TIMESTAMP as an epoch"
_SMALLEST_BEYOND_FLOAT = "340282356779733661637539395458142568448"


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[arg-type,misc]


def read(ddl: str, text: str, reading: DecodeOptions = STRICT) -> object:
    row = StrictDecoder(parse_ddl(f"c {ddl}"), reading).decode(f'{{"c": {text}}}'.encode())
    return (row.error_class, row.error) if isinstance(row, Refusal) else row["c"]


def of_format(name: str, ddl: str) -> DecodeOptions:
    return DecodeOptions(forms_of(parse_ddl(f"c {ddl}"), {"c": name}))


@pytest.mark.parametrize(
    ("ddl", "text", "value"),
    [
        ("BYTE", "-128", -128),
        ("BYTE", "127", 127),
        ("SHORT", "-32768", -32768),
        ("BIGINT", "-9223372036854775808", -(2**63)),
        ("BIGINT", "0", 0),
        ("DOUBLE", "1.7976931348623157e308", 1.7976931348623157e308),
        ("FLOAT", "16777217", 16777216.0),
        ("FLOAT", "3.4028235e38", 3.4028234663852886e38),
        ("STRING", '""', ""),
        ("BOOLEAN", "false", False),
        ("BOOLEAN", "true", True),
        ("BINARY", '""', b""),
        ("BINARY", '"AA=="', b"\x00"),
        ("DATE", '"0001-01-01"', dt.date(1, 1, 1)),
        ("DATE", '"9999-12-31"', dt.date(9999, 12, 31)),
        ("TIMESTAMP", '"2021-03-04T05:06:07"', utc(2021, 3, 4, 5, 6, 7)),
        ("TIMESTAMP", '"2021-03-04 05:06:07z"', utc(2021, 3, 4, 5, 6, 7)),
        ("TIMESTAMP", '"2021-03-04t05:06:07.1Z"', utc(2021, 3, 4, 5, 6, 7, 100_000)),
        ("TIMESTAMP", '"2021-03-04T05:06:07.123456Z"', utc(2021, 3, 4, 5, 6, 7, 123_456)),
        ("TIMESTAMP", '"2021-03-04T05:06:07.123456000Z"', utc(2021, 3, 4, 5, 6, 7, 123_456)),
        ("TIMESTAMP", '"2021-03-04T05:06:07+01:30"', utc(2021, 3, 4, 3, 36, 7)),
        ("TIMESTAMP", '"2021-03-04T05:06:07-0130"', utc(2021, 3, 4, 6, 36, 7)),
        ("TIMESTAMP", '"2021-03-04T05:06:07+23:59"', utc(2021, 3, 3, 5, 7, 7)),
        ("TIMESTAMP_NTZ", '"2021-03-04T05:06:07.5"', dt.datetime(2021, 3, 4, 5, 6, 7, 500_000)),  # noqa: DTZ001
        ("DECIMAL(5,2)", "999.99", Decimal("999.99")),
        ("DECIMAL(5,2)", "-0.01", Decimal("-0.01")),
        ("DECIMAL(5,2)", '"+1.500"', Decimal("1.5")),
        ("DECIMAL(5,2)", "1.5e1", Decimal(15)),
        ("DECIMAL(5,2)", "150E-2", Decimal("1.5")),
        ("DECIMAL(5,2)", "15e+1", Decimal(150)),
        ("DECIMAL(5,2)", "0e999999999999999999999", Decimal(0)),
        ("DECIMAL(5,2)", '".5"', Decimal("0.5")),
        ("DECIMAL(5,2)", '"5."', Decimal(5)),
        ("DECIMAL(5,2)", "0.00e5", Decimal(0)),
        ("DECIMAL(5,2)", "100e-00000000000000000000002", Decimal(1)),
        ("ARRAY<INT>", "[1, null, 2]", [1, None, 2]),
        ("MAP<STRING, INT>", '{"a": 1, "": null}', [("a", 1), ("", None)]),
        ("STRUCT<a: INT, b: INT>", '{"b": 1, "x": 1, "x": 2}', {"a": None, "b": 1}),
        ("INT", "null", None),
    ],
)
def test_value_is_decoded_exactly(ddl: str, text: str, value: object) -> None:
    actual = read(ddl, text)
    assert actual == value
    assert isinstance(actual, type(value))


@pytest.mark.parametrize(
    ("ddl", "text", "error_class", "error"),
    [
        ("BYTE", "-129", _RANGE, "c: -129 is out of range for TINYINT"),
        ("BYTE", "128", _RANGE, "c: 128 is out of range for TINYINT"),
        ("BIGINT", "9223372036854775808", _RANGE, "c: 9223372036854775808 is out of range for BIGINT"),
        ("INT", _MANY, _RANGE, f"c: {'1' * 80}… (81 characters) is out of range for INT"),
        ("INT", "1" * 80, _RANGE, f"c: {'1' * 80} is out of range for INT"),
        ("BIGINT", "1" * 5_000, _RANGE, f"c: {'1' * 80}… (5000 characters) is out of range for BIGINT"),
        ("INT", "1.0", _EXACT, "c: 1.0 is not an integer in plain notation, for INT"),
        ("INT", '"1"', _WRONG, 'c: the string "1" where INT is declared'),
        ("INT", "{}", _WRONG, "c: an object where INT is declared"),
        ("INT", "[]", _WRONG, "c: an array where INT is declared"),
        ("INT", "true", _WRONG, "c: true where INT is declared"),
        ("INT", "false", _WRONG, "c: false where INT is declared"),
        ("DOUBLE", '"1"', _WRONG, 'c: the string "1" where DOUBLE is declared'),
        ("DOUBLE", "1e309", _RANGE, "c: 1e309 is out of range for DOUBLE"),
        ("FLOAT", '"1"', _WRONG, 'c: the string "1" where FLOAT is declared'),
        ("FLOAT", _SMALLEST_BEYOND_FLOAT, _RANGE, f"c: {_SMALLEST_BEYOND_FLOAT} is out of range for FLOAT"),
        ("FLOAT", "1e309", _RANGE, "c: 1e309 is out of range for DOUBLE"),
        ("STRING", "1", _WRONG, "c: the number 1 where STRING is declared"),
        ("STRING", "[]", _WRONG, "c: an array where STRING is declared"),
        ("BOOLEAN", '"é"', _WRONG, 'c: the string "é" where BOOLEAN is declared'),
        ("BINARY", "1", _WRONG, "c: the number 1 where BINARY in base64 (standard alphabet, padded) is declared"),
        ("BINARY", "[]", _WRONG, "c: an array where BINARY in base64 (standard alphabet, padded) is declared"),
        ("BINARY", '"AB=="', _FORM, 'c: the string "AB==" is not a BINARY in base64 (standard alphabet, padded)'),
        ("DATE", "20200101", _WRONG, "c: the number 20200101 where DATE of the form YYYY-MM-DD is declared"),
        ("DATE", '"2020-1-1"', _FORM, 'c: the string "2020-1-1" is not a DATE of the form YYYY-MM-DD'),
        ("DATE", '"2021-02-29"', _FORM, "2021-02-29"),
        ("TIMESTAMP", '"2021-01-01T00:00:00.1234561Z"', _EXACT, "more precise than a microsecond"),
        ("TIMESTAMP", '"2021-01-01T00:00:00.000000001Z"', _EXACT, "more precise than a microsecond"),
        ("TIMESTAMP", '"2021-01-01T24:00:00Z"', _FORM, "2021-01-01T24:00:00Z"),
        ("TIMESTAMP", '"2021-01-01T00:00:00+24:00"', _FORM, "has an invalid offset from UTC"),
        ("TIMESTAMP", '"2021-01-01T00:00:00+00:60"', _FORM, "has an invalid offset from UTC"),
        ("TIMESTAMP", '"0001-01-01T00:00:00+00:01"', _RANGE, "outside the years 0001 to 9999 (UTC)"),
        ("TIMESTAMP", '"9999-12-31T23:59:59-00:01"', _RANGE, "outside the years 0001 to 9999 (UTC)"),
        ("TIMESTAMP_NTZ", '"2021-01-01T00:00:00Z"', _FORM, "has a time zone, but TIMESTAMP_NTZ has none"),
        ("TIMESTAMP_NTZ", '"2021-01-01T00:00:00+00:00"', _FORM, "has a time zone, but TIMESTAMP_NTZ has none"),
        ("DECIMAL(5,2)", "1000", _RANGE, "c: 1000 is out of range for DECIMAL(5,2)"),
        ("DECIMAL(5,2)", "1e3", _RANGE, "c: 1e3 is out of range for DECIMAL(5,2)"),
        ("DECIMAL(5,2)", "1e99999999999999999999", _RANGE, "out of range for DECIMAL(5,2)"),
        ("DECIMAL(5,2)", "1e1000000000000000000", _RANGE, "out of range for DECIMAL(5,2)"),
        ("DECIMAL(5,2)", "0.001", _EXACT, "c: 0.001 has too many decimal places for DECIMAL(5,2)"),
        ("DECIMAL(5,2)", "1e-3", _EXACT, "c: 1e-3 has too many decimal places for DECIMAL(5,2)"),
        ("DECIMAL(5,2)", '"."', _FORM, 'c: the string "." is not a plain number, for DECIMAL(5,2)'),
        ("DECIMAL(5,2)", '"x"', _FORM, 'c: the string "x" is not a plain number, for DECIMAL(5,2)'),
        ("DECIMAL(5,2)", "true", _WRONG, "c: true where DECIMAL(5,2) is declared"),
        ("DECIMAL(5,2)", "[]", _WRONG, "c: an array where DECIMAL(5,2) is declared"),
        ("ARRAY<INT>", "{}", _WRONG, "c: an object where ARRAY<INT> is declared"),
        ("ARRAY<INT>", "1", _WRONG, "c: the number 1 where ARRAY<INT> is declared"),
        ("ARRAY<INT>", '[1, "x"]', _WRONG, 'c[1]: the string "x" where INT is declared'),
        ("MAP<STRING, INT>", "[]", _WRONG, "c: an array where MAP<STRING, INT> is declared"),
        ("MAP<STRING, INT>", '{"é": "x"}', _WRONG, 'c["é"]: the string "x" where INT is declared'),
        ("MAP<STRING, INT>", '{"a": 1, "a": 1}', ErrorClass.DUPLICATE_FIELD, 'c["a"]: the key occurs twice'),
        ("STRUCT<a: INT>", "[]", _WRONG, "c: an array where STRUCT<a: INT> is declared"),
        ("STRUCT<a: INT>", '{"a": null, "a": 1}', ErrorClass.DUPLICATE_FIELD, "c.a: the field occurs twice"),
        ("STRUCT<a: INT>", '{"a": "x"}', _WRONG, 'c.a: the string "x" where INT is declared'),
        ("STRUCT<a: INT NOT NULL>", "{}", ErrorClass.MISSING_FIELD, "c.a: null or missing"),
        ("INT NOT NULL", "null", ErrorClass.MISSING_FIELD, "c: null or missing, but declared NOT NULL"),
    ],
)
def test_value_outside_its_type_is_refused(ddl: str, text: str, error_class: ErrorClass, error: str) -> None:
    refusal = read(ddl, text)
    assert isinstance(refusal, tuple)
    assert refusal[0] is error_class
    assert error in refusal[1]
    assert refusal[1].startswith("c")


@pytest.mark.parametrize(
    ("data_type", "text", "error"),
    [
        (ArrayType(Primitive.INTEGER, contains_null=False), "[1, null]", "c[1]: null or missing"),
        (
            MapType(Primitive.STRING, Primitive.INTEGER, value_contains_null=False),
            '{"a": null}',
            'c["a"]: null or missing',
        ),
    ],
)
def test_null_within_a_value_that_excludes_nulls_is_refused(data_type: DataType, text: str, error: str) -> None:
    row = StrictDecoder(StructType((Field("c", data_type),))).decode(f'{{"c": {text}}}'.encode())
    refusal = instance(Refusal, row)
    assert refusal.error_class is ErrorClass.MISSING_FIELD
    assert refusal.error.startswith(error)


@pytest.mark.parametrize(
    ("name", "ddl", "text", "value"),
    [
        ("epoch_s", "TIMESTAMP", "0", utc(1970, 1, 1)),
        ("epoch_s", "TIMESTAMP", "-0.000001", utc(1969, 12, 31, 23, 59, 59, 999_999)),
        ("epoch_ms", "TIMESTAMP", '"1.001"', utc(1970, 1, 1, 0, 0, 0, 1_001)),
        ("epoch_us", "TIMESTAMP", "1e1", utc(1970, 1, 1, 0, 0, 0, 10)),
        ("epoch_s", "TIMESTAMP_NTZ", "1", dt.datetime(1970, 1, 1, 0, 0, 1)),  # noqa: DTZ001
        ("epoch_s", "TIMESTAMP", "253402300799.999999", utc(9999, 12, 31, 23, 59, 59, 999_999)),
        ("epoch_s", "TIMESTAMP", "253402300800", (_RANGE, f"c: 253402300800 {_NO_YEAR}")),
        ("epoch_s", "TIMESTAMP", "99999999999999999999", (_RANGE, f"c: 99999999999999999999 {_NO_YEAR}")),
        ("epoch_s", "TIMESTAMP", f"1{'0' * 20}", (_RANGE, f"c: 1{'0' * 20} {_NO_EPOCH}")),
        ("epoch_us", "TIMESTAMP", "0.1", (_EXACT, "c: 0.1 has too many decimal places for TIMESTAMP as an epoch")),
        ("hex", "BINARY", '"00fF"', b"\x00\xff"),
        ("hex", "BINARY", '"0"', (_FORM, 'c: the string "0" is not a BINARY in hex (two digits per byte)')),
        ("json", "STRING", '{"a" : [1.0]}', '{"a" : [1.0]}'),
        ("json", "STRING", "true", "true"),
        ("json", "STRING", '"\\u0041"', '"\\u0041"'),
    ],
)
def test_format_defines_the_encoding_of_a_value(name: str, ddl: str, text: str, value: object) -> None:
    assert read(ddl, text, of_format(name, ddl)) == value


def test_formats_apply_within_arrays_maps_and_structs() -> None:
    columns = parse_ddl("a ARRAY<BINARY>, m MAP<STRING, BINARY>, s STRUCT<b: BINARY>")
    reading = DecodeOptions(forms_of(columns, {"a.element": "hex", "m.value": "hex", "s.b": "hex"}))
    row = StrictDecoder(columns, reading).decode(b'{"a": ["00"], "m": {"k": "01"}, "s": {"b": "02"}}')
    assert row == {"a": [b"\x00"], "m": [("k", b"\x01")], "s": {"b": b"\x02"}}


@pytest.mark.parametrize(
    ("ddl", "text", "value"),
    [
        ("INT", '"7"', 7),
        ("INT", "7.00", 7),
        ("INT", "70e-1", 7),
        ("INT", "-7e2", -700),
        ("INT", "0.0", 0),
        ("INT", '"-0"', 0),
        ("BIGINT", "9.223372036854775807e18", 2**63 - 1),
        ("INT", "1e19", (_RANGE, "c: 10000000000000000000 is out of range for INT")),
        ("INT", "1e20", (_EXACT, "c: 1e20 is not an integer in plain notation, for INT")),
        ("INT", "7.5", (_EXACT, "c: 7.5 is not an integer in plain notation, for INT")),
        ("INT", '"x"', (_WRONG, 'c: the string "x" where INT is declared')),
        ("INT", '"07"', (_WRONG, 'c: the string "07" where INT is declared')),
        ("INT", "[]", (_WRONG, "c: an array where INT is declared")),
        ("DOUBLE", '"1.5"', 1.5),
        ("FLOAT", '"1.5"', 1.5),
        ("DOUBLE", "[]", (_WRONG, "c: an array where DOUBLE is declared")),
        ("BOOLEAN", '"true"', True),
        ("BOOLEAN", '"false"', False),
        ("BOOLEAN", '"True"', (_WRONG, 'c: the string "True" where BOOLEAN is declared')),
        ("BOOLEAN", "[]", (_WRONG, "c: an array where BOOLEAN is declared")),
        ("STRING", "1.10", "1.10"),
        ("STRING", '"\\u0041"', "A"),
        ("STRING", '[1, "x"]', '[1, "x"]'),
        ("ARRAY<INT>", '["1"]', [1]),
        ("BINARY", "1", (_WRONG, "c: the number 1 where BINARY in base64 (standard alphabet, padded) is declared")),
    ],
)
def test_lenient_decoding_keeps_the_value(ddl: str, text: str, value: object) -> None:
    actual = read(ddl, text, DecodeOptions(lenient=True))
    assert actual == value
    assert isinstance(actual, type(value))


@pytest.mark.parametrize(
    ("ddl", "text", "value"),
    [
        ("DOUBLE", '"Infinity"', math.inf),
        ("FLOAT", '"-Infinity"', -math.inf),
        ("DOUBLE", "1.5", 1.5),
        ("DOUBLE", '"1.5"', (_WRONG, 'c: the string "1.5" where DOUBLE is declared')),
        ("DOUBLE", "[]", (_WRONG, "c: an array where DOUBLE is declared")),
        ("DOUBLE", '" NaN"', (_WRONG, 'c: the string " NaN" where DOUBLE is declared')),
        ("STRING", '"NaN"', "NaN"),
        ("INT", '"NaN"', (_WRONG, 'c: the string "NaN" where INT is declared')),
    ],
)
def test_non_finite_numbers_are_decoded_for_binary_formats(ddl: str, text: str, value: object) -> None:
    assert read(ddl, text, DecodeOptions(non_finite=True)) == value
    assert math.isnan(instance(float, read("DOUBLE", '"NaN"', DecodeOptions(non_finite=True))))
    assert read("FLOAT", '"1.5"', DecodeOptions(lenient=True, non_finite=True)) == 1.5


@pytest.mark.parametrize(
    ("message", "error_class", "error"),
    [
        (b" \t\r\n", ErrorClass.EMPTY, "the message is empty"),
        (b"\xc2\xa0", ErrorClass.INVALID_JSON, ""),
        (b"{\xff", ErrorClass.INVALID_UTF8, "byte 1 of the message is not UTF-8"),
        (b"[]", ErrorClass.NOT_AN_OBJECT, "the message is an array, not an object"),
        (b'"x"', ErrorClass.NOT_AN_OBJECT, 'the message is the string "x", not an object'),
        (b"{", ErrorClass.INVALID_JSON, ""),
        (b'{"i": 1, "i": 1}', ErrorClass.DUPLICATE_FIELD, "i: the field occurs twice"),
        (b'{"I": 1}', ErrorClass.MISSING_FIELD, "i: null or missing, but declared NOT NULL"),
    ],
)
def test_message_must_be_one_object(message: bytes, error_class: ErrorClass, error: str) -> None:
    row = StrictDecoder(parse_ddl("i INT NOT NULL")).decode(message)
    assert isinstance(row, Refusal)
    assert row.error_class is error_class
    assert row.error.startswith(error)
