"""Whole streams against a plain Python conversion of one record at a time: the same rows, or the same end."""

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from common.schema import parse_ddl
from common.schema.naming import snake_case
from stage_writer.convert import StreamConverter
from stage_writer.decode.rejects import Refusal
from stage_writer.decode.strict import StrictDecoder
from stage_writer.shape.slicing import ExplodeLimits
from tests.conftest import examples
from tests.fakes.streams import batch_of, staged_batches, stream_of

COLUMNS = (
    "id INT, text STRING, v ARRAY<STRUCT<aB: INT, c: STRING>>, s STRUCT<xY: INT, t: STRUCT<u: INT>>, "
    "m MAP<STRING, STRUCT<xY: INT, z: INT>>, w ARRAY<ARRAY<INT>>"
)
Record = dict[str, object]


class FailedError(Exception):
    """An expression fails for one record."""


def number_of(record: Record) -> object:
    text = record["text"]
    try:
        return None if text is None else int(str(text))
    except ValueError:
        raise FailedError from None


def is_positive(record: Record) -> bool:
    return isinstance(record["id"], int) and record["id"] > 0


def fits(record: Record) -> bool:
    number = number_of(record)
    return isinstance(number, int) and number < 5


# Expressions and their meaning; the texts of the records consist of these letters only.
CONDITIONS: Mapping[str, Callable[[Record], bool]] = {"id > 0": is_positive, "CAST(text AS INT) < 5": fits}
DERIVED: Mapping[str, Callable[[Record], object]] = {
    "CAST(text AS INT)": number_of,
    "coalesce(s.xY, id)": lambda record: value if (value := part(record["s"], "xY")) is not None else record["id"],
}
PATHS = ("text", "v.aB", "v.element.aB", "s.t.u", "s.t", "m.value.z", "w", "s", "derived")


def part(value: object, name: str) -> object:
    return value[name] if isinstance(value, dict) else None


class Transform(NamedTuple):
    where: str | None
    derive: str | None
    explode: str | None
    drop: tuple[str, ...]
    rename: dict[str, str]
    snake: bool

    @property
    def settings(self) -> dict[str, object]:
        return {
            "where": self.where,
            "derive": {} if self.derive is None else {"derived": self.derive},
            "explode": self.explode,
            "drop": self.drop,
            "rename": self.rename,
            "field_names": "snake_case" if self.snake else "as_is",
        }


@st.composite
def transforms(draw: st.DrawFn) -> Transform:
    explode = draw(st.sampled_from([None, "v", "w"]))
    derive = draw(st.none() | st.sampled_from(sorted(DERIVED)))
    known = [path for path in PATHS if path != ("v.element.aB" if explode == "v" else "v.aB")]
    known = known if derive else known[:-1]
    drop = draw(st.lists(st.sampled_from(known), unique=True, max_size=3))
    if "s.t.u" in drop:  # would leave nothing of s.t
        drop = [path for path in drop if path != "s.t.u"]
    drop = [path for path in drop if not any(path.startswith(f"{dropped}.") for dropped in drop)]
    left = [path for path in known if not any(path == dropped or path.startswith(f"{dropped}.") for dropped in drop)]
    renamed = draw(st.lists(st.sampled_from(left), unique=True, max_size=3)) if left else []
    return Transform(
        draw(st.none() | st.sampled_from(sorted(CONDITIONS))),
        derive,
        explode,
        tuple(drop),
        {path: f"new{place}" for place, path in enumerate(renamed)},
        draw(st.booleans()),
    )


integers = st.none() | st.integers(-9, 9)
letters = st.none() | st.sampled_from(["1", "4", "7", "x", ""])
records = st.fixed_dictionaries(
    {},
    optional={
        "id": integers | st.just(1.5),
        "text": letters,
        "v": st.none()
        | st.lists(st.none() | st.fixed_dictionaries({"aB": integers}, optional={"c": letters}), max_size=3),
        "s": st.none() | st.fixed_dictionaries({}, optional={"xY": integers, "t": st.none() | st.just({"u": 3})}),
        "m": st.none() | st.dictionaries(st.sampled_from("pq"), st.none() | st.just({"xY": 1, "z": 2}), max_size=2),
        "w": st.none() | st.lists(st.none() | st.lists(integers, max_size=2), max_size=2),
    },
)
messages = st.none() | records.map(lambda record: json.dumps(record).encode()) | st.just(b"{")


def named(value: object, path: str, transform: Transform) -> object:
    """A value after `drop`, `rename` and `field_names`; ``path`` ends with a dot."""
    if isinstance(value, dict):
        return {
            new_name(name, path, transform): named(inner, f"{path}{name}.", transform)
            for name, inner in value.items()
            if f"{path}{name}" not in transform.drop
        }
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return [(key, named(inner, f"{path}value.", transform)) for key, inner in value]
    if isinstance(value, list):
        return [named(inner, f"{path}element.", transform) for inner in value]
    return value


def new_name(name: str, path: str, transform: Transform) -> str:
    given = transform.rename.get(f"{path}{name}")
    if given is not None:
        return given
    return snake_case(name) if transform.snake and name != "derived" else name


def run_in_order(message: bytes | None, transform: Transform) -> list[object] | str:
    """The rows of one message, or its end without one."""
    if message is None:
        return "tombstone"
    record = StrictDecoder(parse_ddl(COLUMNS)).decode(message)
    if isinstance(record, Refusal):
        return "dead letter"
    result: Record = dict(record)
    try:
        if transform.where is not None and not CONDITIONS[transform.where](result):
            return "filtered"
        if transform.derive is not None:
            result["derived"] = DERIVED[transform.derive](dict(result))
    except FailedError:
        return "dead letter"
    elements = [None]
    if transform.explode is not None:
        values = result[transform.explode]
        elements = values if isinstance(values, list) and values else [None]
    rows = [result if transform.explode is None else result | {transform.explode: element} for element in elements]
    return [named(row, "", transform) for row in rows]


@settings(max_examples=examples(0.3))
@given(
    transforms(),
    st.lists(messages, min_size=1, max_size=6),
    st.lists(messages, min_size=1, max_size=3),
    st.sampled_from([1, 50, 10**9]),
)
def test_each_message_ends_as_it_would_alone(
    transform: Transform, first: list[bytes | None], second: list[bytes | None], slice_bytes: int
) -> None:
    stream = stream_of(columns=COLUMNS, kafka_columns=True, **transform.settings)
    converter = StreamConverter(stream, limits=ExplodeLimits(slice_bytes))
    batches = [batch_of(first), batch_of(second, partition=4)]
    sliced = [each for parts in converter.slices(batches) for each in parts]
    for own_batch in batches:
        mine = [staged.rows for part, staged in sliced if part.partition == own_batch.partition]
        at_once = staged_batches(StreamConverter(stream), [own_batch])[0].rows
        assert [pa.concat_tables(tables) for tables in zip(*mine, strict=True)] == list(at_once)
    for staged, batch in zip(staged_batches(StreamConverter(stream), batches), (first, second), strict=True):
        ends = [run_in_order(message, transform) for message in batch]
        rows = [(100 + place, row) for place, end in enumerate(ends) if isinstance(end, list) for row in end]
        staged_rows = staged.rows[0].to_pylist()
        assert [(row.pop("_kafka_offset"), without_kafka(row)) for row in staged_rows] == rows
        assert staged.rows[1].column("_kafka_offset").to_pylist() == places(ends, "dead letter")
        assert staged.filtered_offsets.tolist() == places(ends, "filtered")
        assert staged.tombstones == ends.count("tombstone")
        assert staged.exploded == sum(len(end) - 1 for end in ends if isinstance(end, list))


def without_kafka(row: Record) -> Record:
    return {name: value for name, value in row.items() if not name.startswith("_kafka_")}


def places(ends: list[list[object] | str], end: str) -> list[int]:
    return [100 + place for place, end_of_batch in enumerate(ends) if end_of_batch == end]
