"""The part of a stream's settings that says which rows its records become."""

from typing import Self

from pydantic import Field, model_validator

from common.settings.expectations import OnFail, Rules
from common.settings.refusing import refuse
from common.settings.route_tables import FieldNames
from common.settings.section import SectionPart


class ShapingSettings(SectionPart):
    """How records become rows, and which records are dropped."""

    where: str | None = Field(
        default=None,
        min_length=1,
        description="SQL condition over the same inputs as `derive`. A record for which it is false or null "
        "becomes no row, and is counted; a record for which it fails is a dead letter.",
        examples=["status >= 400"],
    )
    derive: dict[str, str] = Field(
        default_factory=dict,
        description="Columns made from others: name to SQL expression over the record's fields and `kafka.topic`, "
        "`kafka.partition`, `kafka.offset`, `kafka.timestamp`, `kafka.key`, `kafka.headers`.",
    )
    expect: Rules = Field(
        default_factory=dict,
        description="Rules that rows should follow: name to SQL condition over the same inputs as `route`, or "
        "`{rule: SQL, on_fail: …}`. A record breaks a rule that is false for it or that fails; null breaks no rule. "
        "Counted by rule. See [transforms.md](transforms.md#rules).",
        examples=[{"positive_amount": "amount > 0", "known_country": {"rule": "len(country) = 2", "on_fail": "count"}}],
    )
    on_fail: OnFail = Field(
        default=OnFail.DEAD_LETTER,
        description="What becomes of a record that breaks a rule of `expect`: `dead_letter`, with the error class "
        "`expectation`; `count` stages and counts it; `hold` stops its Kafka partition in front of it until the "
        "rule or its `on_fail` is changed, or the record is given up.",
    )
    explode: str | None = Field(
        default=None,
        min_length=1,
        description="A column of type ARRAY, declared or derived: each element becomes a row, with the record's "
        "other columns. A record whose array is null or empty has one row, with null there.",
        examples=["items"],
    )
    drop: tuple[str, ...] = Field(
        default=(),
        description="Fields that expressions see but the table does not have, by path: `secret`, "
        "`meta.producer.name`, `items.element.note` in an array, `props.value.note` in a map. Also "
        "derived columns.",
        examples=[["meta.producer.name"]],
    )
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="Fields, by path as in `drop`, and their names in the table; a field keeps its place. "
        "Expressions, `explode` and `drop` use the record's names, `partition_by` the table's. With "
        "`unknown_fields: evolve` also fields that records do not have yet.",
        examples=[{"userID": "user"}],
    )
    field_names: FieldNames = Field(
        default=FieldNames.AS_IS,
        description="Names of the fields that `rename` does not name: `snake_case` makes `user_id` of `userID`.",
    )

    @model_validator(mode="after")
    def _on_fail(self) -> Self:
        if self.on_fail is not OnFail.DEAD_LETTER and not self.expect:
            refuse(f"on_fail is {self.on_fail}, but expect has no rules; add one, or remove on_fail")
        return self
