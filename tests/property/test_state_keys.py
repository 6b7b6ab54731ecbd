"""Keys and values of state stores: bytes sort like their keys, and every value round-trips."""

import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stage_writer.topologies.stores.keys import Key, Windowed, key_at, key_from_bytes, key_to_bytes, prefix_bounds
from stage_writer.topologies.stores.values import value_from_bytes, value_to_bytes

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6) | st.text("a\x00\xff\U0010ffff", max_size=5)
TIMES = st.integers(-(2**40), 2**45)
SINGLE: list[st.SearchStrategy[Key]] = [
    st.integers() | st.integers(-300, 300) | st.sampled_from([2**n + d for n in (8, 16, 63, 64, 128) for d in (-1, 0)]),
    st.floats(allow_nan=False),
    st.binary(max_size=5) | st.text("\x00\xff", max_size=4).map(lambda text: text.encode("latin-1")),
    TEXTS,
]
KEYS: st.SearchStrategy[Key] = st.recursive(
    st.one_of(st.none(), st.booleans(), *SINGLE),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.builds(lambda key, start, length: Windowed(key, start, start + length), inner, TIMES, st.integers(0, 9999))
    ),
    max_leaves=4,
)


@st.composite
def comparable(draw: st.DrawFn) -> tuple[Key, Key]:
    kind = draw(st.sampled_from([*SINGLE, st.tuples(TEXTS, SINGLE[0]), st.lists(TEXTS, max_size=3).map(tuple)]))
    first, second = draw(kind), draw(kind)
    if draw(st.booleans()):
        return first, second
    return Windowed(first, draw(TIMES), draw(TIMES)), Windowed(second, draw(TIMES), draw(TIMES))


@given(comparable())
@example(("a", "a\x00"))
@example((("a", 1), ("a\x00", 0)))
@example((Windowed("a", 2**44, 2**44), Windowed("a\x00", 0, 0)))
@example((-256, -255))
def test_bytes_sort_like_their_keys(keys: tuple[Key, Key]) -> None:
    first, second = keys
    assert (key_to_bytes(first) < key_to_bytes(second)) == (first < second)  # type: ignore[operator]
    assert (key_to_bytes(first) == key_to_bytes(second)) == (first == second)


@given(KEYS, st.binary(min_size=1, max_size=2))
def test_key_round_trips_with_its_type_and_length(key: Key, rest: bytes) -> None:
    data = key_to_bytes(key)
    back = key_from_bytes(data)
    assert back == key
    assert type(back) is type(key)
    assert data[0] > 0
    if rest[0] < 255:  # stores never write 255 after a key
        assert key_at(data + rest, 0) == (key, len(data))


@given(KEYS, KEYS)
def test_no_key_is_a_prefix_of_another(first: Key, second: Key) -> None:
    prefix, other = key_to_bytes(first), key_to_bytes(second)
    assert prefix == other or not other.startswith(prefix)


@given(TEXTS, TEXTS)
def test_prefix_of_text_bounds_exactly_the_texts_that_begin_with_it(prefix: str, text: str) -> None:
    low, high = prefix_bounds(prefix)
    data = key_to_bytes(text)
    assert (low <= data and (high is None or data < high)) == text.startswith(prefix)


@given(st.lists(TEXTS, max_size=2).map(tuple), st.lists(TEXTS, max_size=3).map(tuple))
def test_prefix_of_elements_bounds_exactly_the_tuples_that_begin_with_them(
    prefix: tuple[str, ...], key: tuple[str, ...]
) -> None:
    low, high = prefix_bounds(prefix)
    data = key_to_bytes(key)
    assert (low <= data and (high is None or data < high)) == (key[: len(prefix)] == prefix)


@given(st.binary(max_size=12))
def test_any_bytes_are_a_key_or_raise_value_error(data: bytes) -> None:
    try:
        key = key_from_bytes(data)
    except ValueError:
        return
    assert key_from_bytes(key_to_bytes(key)) == key or key != key  # noqa: PLR0124 - NaN


def test_nan_and_minus_zero_are_one_key_each() -> None:
    assert key_to_bytes(-0.0) == key_to_bytes(0.0)
    assert key_to_bytes(math.nan) == key_to_bytes(-math.nan) > key_to_bytes(math.inf)
    assert math.isnan(key_from_bytes(key_to_bytes(math.nan)))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [["a"], {"a": 1}, object(), ("a", ["b"]), 2**1000])
def test_invalid_key_is_refused(key: Key) -> None:
    with pytest.raises((TypeError, ValueError)):
        key_to_bytes(key)


ZONES = st.sampled_from([None, UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("America/St_Johns")])
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | TEXTS
    | st.binary(max_size=5)
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.datetimes(timezones=ZONES)
    | st.times()
    | st.timedeltas()
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(TEXTS | st.integers() | st.tuples(TEXTS, st.integers()), inner, max_size=3)
        | st.builds(Windowed, TEXTS, TIMES, TIMES)
    ),
    max_leaves=6,
)


def types_of(value: object) -> object:
    """The shape of a value, down to the types of its atoms."""
    match value:
        case list() | tuple():
            return type(value), [types_of(element) for element in value]
        case dict():
            return dict, [(types_of(key), types_of(element)) for key, element in value.items()]
        case datetime():
            return datetime, value.fold, str(value.tzinfo)
        case _:
            return type(value)


@given(VALUES)
def test_value_round_trips(value: object) -> None:
    back = value_from_bytes(value_to_bytes(value))
    assert back == value
    assert types_of(back) == types_of(value)


TAGGED = st.builds(
    lambda tag, body: bytes([0xC7, len(body), tag]) + body,  # MessagePack's extension types
    st.integers(0, 10),
    st.binary(max_size=20) | st.text("0123456789-", max_size=12).map(str.encode),
)


@given(st.binary(max_size=20) | TAGGED)
@example(b"\xc7\x01\x09" + b"7")
def test_any_bytes_are_a_value_or_raise_value_error(data: bytes) -> None:
    try:
        value = value_from_bytes(data)
    except ValueError:
        return
    written = value_to_bytes(value)
    back = value_from_bytes(written)
    assert types_of(back) == types_of(value)
    assert value_to_bytes(back) == written  # a NaN is not equal to itself


@pytest.mark.parametrize("value", [object(), {1, 2}, {"a": {3}}, range(3)])
def test_unsupported_value_is_refused_by_its_type(value: object) -> None:
    with pytest.raises(TypeError, match=r"a store cannot keep builtins\.(object|set|range)"):
        value_to_bytes(value)


class Counter(dict[str, int]):
    pass


class Seconds(timedelta):
    pass


@pytest.mark.parametrize("value", [Counter(a=1), Seconds(1), [Counter()]])
def test_subclass_that_would_lose_its_type_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="a store cannot keep"):
        value_to_bytes(value)
