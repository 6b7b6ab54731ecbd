"""The C reader alone: each record that it takes equals the strict decoder's row, and it takes ordinary records."""

import json
import math
import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.schema import StructType, parse_ddl, to_arrow_schema
from stage_writer.decode.decode_options import STRICT, DecodeOptions, NativeDecoder
from stage_writer.decode.rejects import Refusal
from stage_writer.decode.strict import StrictDecoder
from tests.builders import required
from tests.fakes.native import required_library
from tests.property.test_decode_agrees import READINGS, batches

ALL = list(READINGS.values())


def reader_of(columns: StructType, reading: DecodeOptions = STRICT) -> NativeDecoder:
    return required(required_library().native_decoder(columns, reading))


def check(columns: StructType, reading: DecodeOptions, messages: Sequence[bytes]) -> None:
    strict = StrictDecoder(columns, reading)
    taken = reader_of(columns, reading).read(pa.array(messages, pa.binary()))
    taken.rows.validate(full=True)
    chosen = [message for message, is_taken in zip(messages, taken.is_decoded.tolist(), strict=True) if is_taken]
    rows = [strict.decode(message) for message in chosen]
    assert not [row for row in rows if isinstance(row, Refusal)]
    wanted = pa.array(rows, pa.struct(list(to_arrow_schema(columns))))
    assert repr(taken.rows.to_pylist()) == repr(wanted.to_pylist())


@given(st.sampled_from(ALL).flatmap(lambda drawn: st.tuples(st.just(drawn), batches(*drawn))))
def test_taken_record_equals_the_strict_decoder_s_row(
    case: tuple[tuple[StructType, DecodeOptions], list[bytes | None]],
) -> None:
    (columns, reading), batch = case
    check(columns, reading, [message for message in batch if message is not None])


@given(
    st.lists(
        st.one_of(st.binary(max_size=40), st.text(alphabet='{}[]":,\\ut01.eE-né\x00', max_size=30).map(str.encode))
    )
)
@example(
    [
        b'{"i":1',
        b',"t":"x"}',
        b'{"i":1},"z":2',
        b'{"t":"\xed\xa0\x80"}',
        b'{"t":"\xc0\xaf"}',
        b'{"t":"\xf4\x90\x80\x80"}',
    ]
)
@example(
    [b'{"i":00}', b'{"i":-}', b'{"i":1.}', b'{"d":1e}', b'{"d":.5}', b'{"t":"\\x"}', b'{"t":"\\u12"}', b'{"t":"\t"}']
)
@example([b'{"d":0.' + b"0" * 100_001 + b"1e1000002}", b'{"d":1e-99999999999}', b'{"d":0e99999999999}'])
def test_any_bytes_agree_with_the_strict_decoder(messages: list[bytes]) -> None:
    columns, reading = READINGS["plain"]
    check(columns, reading, messages)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_doubles_are_the_nearest(values: list[float]) -> None:
    taken = reader_of(parse_ddl("d DOUBLE")).read(pa.array([b'{"d":%r}' % value for value in values], pa.binary()))
    kept = [value for value, is_taken in zip(values, taken.is_decoded.tolist(), strict=True) if is_taken]
    assert struct.pack(f"{len(kept)}d", *kept) == taken.rows.field(0).to_numpy(zero_copy_only=False).tobytes()
    ordinary = [value == 0 or abs(value) > 1e-300 for value in values]
    assert taken.is_decoded[np.array(ordinary, np.bool_)].all()  # all except subnormals


@given(st.lists(st.tuples(st.integers(2**52, 2**53 - 1), st.integers(-60, 10), st.integers(-1, 1))))
@example([(6511731769870476875 >> 11, -14, 0), (2**53 - 1, -20, 0)])
def test_numbers_between_two_doubles_are_rounded_as_in_python(halves: list[tuple[int, int, int]]) -> None:
    texts = []
    for digits, power, nudge in halves:
        numerator, decimals = (2 * digits + 1) * (5**-power if power < 0 else 2**power), max(0, -power)
        texts.append(f"{numerator + nudge}e-{decimals}" if decimals else f"{numerator + nudge}.0")
    taken = reader_of(parse_ddl("d DOUBLE")).read(
        pa.array([b'{"d":%s}' % text.encode() for text in texts], pa.binary())
    )
    kept = [float(text) for text, is_taken in zip(texts, taken.is_decoded.tolist(), strict=True) if is_taken]
    assert taken.rows.field(0).to_pylist() == kept
    assert all(math.isfinite(value) for value in kept)


@pytest.mark.parametrize(
    "message",
    [
        b'{"i":1,"l":-9223372036854775808,"t":"a","d":1.5}',
        b' {\n"d" : 12.345678901234567 ,\t"t" : "\\u00e9\\ud83d\\ude00\\"\\\\\\/\\b\\f\\n\\r\\t" }\r\n',
        b'{"t":"\xc3\xa9 and more than sixteen bytes \xe2\x82\xac\xf0\x9f\x98\x80"}',
        b'{"\\u0069":1,"unknown":{"a":[1,2.5e+3,{"b":null}],"b":true},"more":[]}',
        b"{}",
        b'{"i":null,"i2":null,"t":"' + b"x" * 1000 + b'"}',
        b'{"o":true,"o2":{"o":false},"a":"2024-02-29","n":"2024-02-29 00:00:00"}',
        b'{"z":"2024-02-29T23:59:59.123456+05:30"}',
        b'{"m":"1.25","y":"aGk=","f":0.1,"b":127}',
        b'{"m":-1.2500}',
    ],
)
def test_ordinary_records_are_taken(message: bytes) -> None:
    columns, reading = READINGS["plain"]
    taken = reader_of(columns, reading).read(pa.array([message, b"{", message], pa.binary()))
    assert taken.is_decoded.tolist() == [True, False, True]
    known = set(columns.names)
    assert taken.has_unknown.tolist() == [not known.issuperset(json.loads(message))] * 2
    check(columns, reading, [message, message])


def test_slices_and_empty_arrays_are_read() -> None:
    reader = reader_of(parse_ddl("i INT"))
    messages = pa.array([b'{"i":1}', b'{"i":2}', b'{"i":', b"3}", b'{"i":4}'], pa.binary())
    taken = reader.read(messages.slice(1, 4))
    assert taken.rows.to_pylist() == [{"i": 2}, {"i": 4}]
    assert taken.is_decoded.tolist() == [True, False, False, True]
    assert reader.read(messages.slice(5)).rows.to_pylist() == []
    assert reader.read(pa.array([b"", b""], pa.binary())).is_decoded.tolist() == [False, False]


def test_deeply_nested_records_are_left_to_the_strict_decoder() -> None:
    reader = reader_of(parse_ddl("i INT"))
    deep = [b'{"i":1,"u":' + b"[" * depth + b"]" * depth + b"}" for depth in (1, 64, 65, 1024, 1025, 100_000)]
    assert reader.read(pa.array(deep, pa.binary())).is_decoded.tolist() == [True, True, True, True, False, False]


def test_many_map_keys_are_taken_and_a_repeated_one_is_left() -> None:
    reader = reader_of(parse_ddl("g MAP<STRING, MAP<STRING, INT>>"))
    for count in (0, 1, 16, 17, 32, 33, 64, 65, 1000):
        keys = [str(key) for key in range(count)]
        inner = {key: place for place, key in enumerate(keys)}
        whole = json.dumps({"g": {key: inner if place < 3 else {} for place, key in enumerate(keys)}})
        again = [whole[:-2] + f',"{key}":null}}}}' for key in (keys[0], keys[-1])] if keys else []
        escaped = whole.replace(f'"{keys[-1]}": {count - 1}', f'"\\u0030": {count - 1}', 1) if count > 1 else None
        again += [] if escaped is None else [escaped]
        taken = reader.read(pa.array([whole, *again], pa.binary()))
        assert taken.is_decoded.tolist() == [True, *(False for _ in again)]
        assert [dict(pairs) for _, pairs in taken.rows.to_pylist()[0]["g"][:3]] == [inner] * min(count, 3)


def test_colliding_keys_are_left_to_the_strict_decoder() -> None:
    reader = reader_of(parse_ddl("g MAP<STRING, INT>"))
    colliding: list[str] = []
    number = 0
    while len(colliding) < 100:
        key, number = str(number), number + 1
        if _hash(key) % 256 == 0:
            colliding.append(key)
    maps = [json.dumps({"g": dict.fromkeys(keys, 1)}) for keys in (colliding[:20], colliding)]
    assert reader.read(pa.array(maps, pa.binary())).is_decoded.tolist() == [True, False]


def _hash(key: str) -> int:
    digest = 2166136261
    for byte in key.encode():
        digest = (digest ^ byte) * 16777619 % 2**32
    return digest ^ digest >> 15


def test_long_numbers_are_taken() -> None:
    columns = parse_ddl("d DOUBLE, f FLOAT, w DECIMAL(38,18), x DECIMAL(38,0), m DECIMAL(5,2)")
    digits = "12345678901234567890123456789012345678"
    taken = [
        f'{{"x":{digits},"w":"{digits[:20]}.{digits[20:]}"}}',
        f'{{"x":-{digits[:30]}.000,"w":{digits[:10]}.{digits[10:20]}0000000}}',
        '{"x":1e37,"m":1.5e2,"w":1.5e-17}',
        '{"m":0.0000000000000000000000000000000000000000000,"x":0e999}',
        '{"m":123.4500000000000000000000000000000000}',
        f'{{"d":0.1000000000000000055511151231257827{digits},"f":{digits}}}',
        f'{{"d":{digits}{digits}{digits}.{digits}e-20,"f":-0.{digits}e10}}',
        '{"d":123456789012345678901234567890e-300}',
    ]
    left = [f'{{"x":{digits}0}}', f'{{"x":{digits}.5}}', '{"x":1e38}', '{"m":1.5e3}', '{"m":1e-3}', '{"m":1e400}']
    reader = reader_of(columns)
    messages = [message.encode() for message in (*taken, *left)]
    assert reader.read(pa.array(messages, pa.binary())).is_decoded.tolist() == [True] * len(taken) + [False] * len(left)
    check(columns, STRICT, messages)


def test_base64_with_escapes_is_taken() -> None:
    columns = parse_ddl("y BINARY, t STRING")
    messages = [
        rb'{"y":"\/\/8=","t":"\/"}',
        rb'{"y":"\u0059WE="}',
        rb'{"y":"\/\/8"}',
        rb'{"y":"\/\/8=\x"}',
        rb'{"y":"\/',
    ]
    taken = reader_of(columns).read(pa.array(messages, pa.binary()))
    assert taken.is_decoded.tolist() == [True, True, False, False, False]
    assert taken.rows.to_pylist() == [{"y": b"\xff\xff", "t": "/"}, {"y": b"aa", "t": None}]
    check(columns, STRICT, messages)


def test_lenient_values_are_taken() -> None:
    columns, reading = READINGS["plain, lenient"]
    messages = [
        b'{"i":"7","l":1.0,"t":[1 , 2],"o":"true","d":"1.5"}',
        b'{"i":-0.0,"l":"12e2","t":-1.50,"o":false,"f":"1e3"}',
        b'{"l":922337203685477580.0,"t":{"a" : "\\u0041"}}',
    ]
    refused = [
        b'{"i":"1.5"}',
        b'{"i":1e400}',
        b'{"i":" 7"}',
        b'{"o":"True"}',
        b'{"l":9223372036854775808.0}',
        b'{"t":[1,]}',
    ]
    taken = reader_of(columns, reading).read(pa.array([*messages, *refused], pa.binary()))
    assert taken.is_decoded.tolist() == [True] * len(messages) + [False] * len(refused)
    check(columns, reading, messages)
