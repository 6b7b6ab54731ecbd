import json

from hypothesis import given
from hypothesis import strategies as st

from common.schema import (
    ArrayType,
    DataType,
    DecimalType,
    Field,
    MapType,
    Primitive,
    StructType,
    parse_ddl,
    schema_from_json,
    schema_to_json,
    to_ddl,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
NAMES = st.one_of(
    TEXT.filter(bool), st.sampled_from(["a", "b_1", "`", "array", "NOT", "a b", "1", "comment", "--", "/*"])
)
DECIMALS = st.integers(1, 38).flatmap(lambda p: st.builds(DecimalType, st.just(p), st.integers(0, p)))


def schemas(*, in_ddl: bool) -> st.SearchStrategy[StructType]:
    nulls = st.just(value=True) if in_ddl else st.booleans()
    comments = st.none() | TEXT
    more = st.none() if in_ddl else st.none() | st.dictionaries(TEXT, st.integers() | TEXT | st.booleans(), max_size=2)

    def field(
        name: str,
        inner: DataType,
        nullable: bool,  # noqa: FBT001 - Hypothesis gives arguments by place
        comment: str | None,
        extra: dict[str, object] | None,
    ) -> Field:
        metadata = {**(extra or {}), **({} if comment is None else {"comment": comment})}
        return Field(name, inner, nullable, json.dumps(metadata, separators=(",", ":"), ensure_ascii=False))

    def structs(inner: st.SearchStrategy[DataType], least: int = 0) -> st.SearchStrategy[StructType]:
        fields = st.builds(field, NAMES, inner, st.booleans(), comments, more)
        unique = st.lists(fields, min_size=least, max_size=4, unique_by=lambda field: field.name.casefold())
        return unique.map(lambda some: StructType(tuple(some)))

    leaves: st.SearchStrategy[DataType] = st.one_of(st.sampled_from(Primitive), DECIMALS)
    types = st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(ArrayType, inner, nulls), st.builds(MapType, inner, inner, nulls), structs(inner)
        ),
        max_leaves=6,
    )
    return structs(types, 1)


@given(schemas(in_ddl=True))
def test_column_list_round_trips(schema: StructType) -> None:
    assert parse_ddl(to_ddl(schema)) == schema


@given(schemas(in_ddl=False))
def test_schema_json_round_trips(schema: StructType) -> None:
    assert schema_from_json(schema_to_json(schema)) == schema
    assert schema_to_json(schema_from_json(schema_to_json(schema))) == schema_to_json(schema)
