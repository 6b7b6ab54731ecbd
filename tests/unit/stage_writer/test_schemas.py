"""The columns that a writer uses now: those that were found, and those that the loader has published."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import structlog

from common.schema import StructType, parse_ddl
from stage_writer.ports import Converter, WriterStage
from stage_writer.schemas import LOOK_AT_SCHEMAS_S, Schemas
from tests.fakes.group import HandClock

GAINED = parse_ddl("more INT")


class Named:
    """A converter that shows what it was made of."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stream = SimpleNamespace(app_id="orders", evolves=True)

    def at(self, gained: StructType) -> "Named":
        return Named(f"{self.name} with {', '.join(gained.names)}")


class Found:
    """Columns that are found once."""

    converter: Named | None = None

    def look(self) -> Mapping[str, Converter]:
        found, self.converter = self.converter, None
        return {} if found is None else {"orders": cast("Converter", found)}


def test_columns_that_are_found_later_are_in_addition_to_those_that_were_gained() -> None:
    published: list[StructType] = []
    stage = SimpleNamespace(gained=lambda _: published[-1] if published else None)
    declared, columns, clock = cast("Converter", Named("declared")), Found(), HandClock()
    schemas = Schemas([declared], cast("WriterStage", stage), clock, structlog.get_logger(), columns)

    def newest() -> str:
        schemas.look()
        return cast("Named", schemas.newest(declared)).name

    columns.converter = Named("found")
    assert newest() == "found"
    published.append(GAINED)
    clock.sleep_s(LOOK_AT_SCHEMAS_S)
    assert newest() == "found with more"
    columns.converter = Named("found again")
    assert newest() == "found again with more"
    clock.sleep_s(LOOK_AT_SCHEMAS_S)
    assert newest() == "found again with more"
