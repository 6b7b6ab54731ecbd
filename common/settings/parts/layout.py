"""The part of a stream's settings that says how tables are made that the loader creates."""

from pydantic import Field

from common.settings.section import SectionPart


class LayoutSettings(SectionPart):
    """A new table, except for its columns."""

    partition_by: tuple[str, ...] = Field(default=(), description="Partition columns of the table, in order.")
    cluster_by: tuple[str, ...] = Field(
        default=(),
        description="Columns that Delta clusters a new table's files by (liquid clustering), when OPTIMIZE runs.",
        examples=[["customer", "created"]],
    )
    table_properties: dict[str, str] = Field(
        default_factory=dict,
        description="Properties of tables that the loader creates, as in `TBLPROPERTIES`. Existing tables keep theirs.",
        examples=[{"delta.enableChangeDataFeed": "true"}],
    )
    template: str | None = Field(
        default=None,
        min_length=1,
        description="URL of a Delta table that new tables are created like: its columns in their order (with "
        "constraints, generated columns and the like), partitioning, clustering and properties. It "
        "must have all staged columns.",
    )
    uniform: tuple[str, ...] = Field(
        default=(),
        description="Other formats whose readers can read a new table (UniForm). Refused for now: no jar for it "
        "matches this Delta version.",
    )
