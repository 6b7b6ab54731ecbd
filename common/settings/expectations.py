"""`expect` of a stream: rules that its rows should follow, and what becomes of a record that breaks one.

Rule: a record breaks a rule that is false for it, or that cannot be evaluated. Null does not break a rule, as in SQL's
CHECK.
"""

import re
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from common.settings.refusing import refuse
from common.settings.section import Section

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class OnFail(StrEnum):
    """The treatment of a record that breaks a rule."""

    DEAD_LETTER = "dead_letter"
    COUNT = "count"
    HOLD = "hold"


class Expectation(Section):
    """One rule. In a config it may be the SQL alone."""

    rule: str = Field(min_length=1, description="SQL condition over the record's fields and the derived columns.")
    on_fail: OnFail | None = Field(default=None, description="The rule's own `on_fail`; by default the stream's.")

    @model_validator(mode="before")
    @classmethod
    def _sql_alone(cls, value: object) -> object:
        if not isinstance(value, (str, dict, cls)):
            msg = "is not a rule; write a SQL condition, or {rule: SQL condition, on_fail: count}"
            raise ValueError(msg)  # noqa: TRY004 - pydantic takes a ValueError for a refusal
        return {"rule": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(schema)]}


def _with_good_names(rules: dict[str, Expectation]) -> dict[str, Expectation]:
    """Raises ValueError for a name that metrics and markers cannot carry, and for two that differ in case only."""
    seen: dict[str, str] = {}
    for name in rules:
        if not _NAME.fullmatch(name):
            refuse(f"names a rule {name[:120]!r}; up to 100 letters, digits, '.', '_' and '-' are allowed")
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            refuse(f"names the rules {other!r} and {name!r}, which differ only in case; rename one of them")
    return rules


Rules = Annotated[dict[str, Expectation], AfterValidator(_with_good_names)]
