"""`merge` of a stream: change events become the newest state of each key's row.

Rule: keys, sequence and soft_delete are columns of the table, by their names there; ``operation`` sees the record.
"""

from pydantic import Field

from common.settings.section import Section


class MergeSettings(Section):
    """How a stream's events become a table with one row for each key."""

    keys: tuple[str, ...] = Field(
        default=(),
        description="Columns of the table that identify a row. An event whose key has a null is a dead letter. They "
        "may be left out with `route_columns: own`: a table's keys are then the names in its message keys, or those "
        "that Canal and Maxwell have in each event. With `explode` at least one is the element, or a field in it by "
        "its path (`items.sku`); the others name the record, whose rows are replaced together.",
        examples=[["id"]],
    )
    route_keys: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="With `route_columns: own`, or `columns` in sections of `routes`: the keys of the tables of some "
        "routes, where these are not `keys`, or where events do not name them.",
        examples=[{"audit_log": ["at", "user"]}],
    )
    operation: str | None = Field(
        default=None,
        min_length=1,
        description="SQL over the same inputs as `derive` and the derived columns: the operation of an event. "
        "With an `envelope` it is `_cdc.op`. Without it every record is an upsert.",
        examples=["op"],
    )
    deletes: tuple[str, ...] = Field(
        default=(),
        description="Values of `operation`, as text, that delete the key's row; any other value, and null, is an "
        "upsert. With an `envelope` it is set: `[d]`, `[delete]` or `[DELETE]`.",
        examples=[["delete"]],
    )
    tombstones: str = Field(
        default="delete",
        pattern="^(delete|ignore)$",
        description="Effect of a message without a value: `delete` deletes the row whose key is in the message "
        "key (a JSON object with the key's fields, or a single value for one key column); `ignore` "
        "does nothing. A message whose key cannot be read is a dead letter.",
    )
    sequence: str | None = Field(
        default=None,
        min_length=1,
        description="Column of the table that orders a key's events: an event that is lower than the row's value "
        "is ignored, also in a later load. An upsert without it is a dead letter; a delete without "
        "it always applies. By default the order in Kafka counts.",
        examples=["updated_at"],
    )
    soft_delete: str | None = Field(
        default=None,
        min_length=1,
        description="Name of a BOOLEAN column that the table gets: true for deleted rows, which then stay.",
        examples=["is_deleted"],
    )
    history: bool = Field(
        default=False,
        description="Whether the table keeps every version of a row (SCD type 2), with the columns `valid_from`, "
        "`valid_to` and `is_current`, instead of the newest one. `valid_from` is the `sequence`; without one, the "
        "time of the change in the source (of an `envelope`) or of the record in Kafka. A delete ends the current "
        "version. Set it before the first load.",
    )
    ignore_nulls: bool = Field(
        default=False,
        description="For events with only the fields that changed: a null (or a missing field) in an upsert leaves the "
        "row's value in the column. An upsert after a delete starts with a new row. Such events are not checked one by "
        "one: one that the table forbids holds its Kafka partition.",
    )
    truncates: str = Field(
        default="dead_letter",
        pattern="^(dead_letter|apply)$",
        description="Effect of an event of an `envelope` that says that the source table was truncated: a dead letter, "
        "`truncated`, or with `apply` a delete of every row, once and in the order of its Kafka partition. For a topic "
        "with one partition and the events of one table.",
    )
