"""A stream's settings: what to load, from where to where. The rules are those of `common.settings.model`.

Settings that contradict each other are refused by `common.settings.checks`, when a file is read.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, field_validator, model_validator

from common.settings.catalog import require_location, with_locations, with_main_table
from common.settings.columns_from import with_implied
from common.settings.merge import MergeSettings
from common.settings.parts import LayoutSettings, PaceSettings, RecordSettings, RoutingSettings, ShapingSettings
from common.settings.route_tables import AppearedTable, RouteTable
from common.settings.section import SectionOfParts, refuse
from common.settings.services import StreamServices
from common.settings.topic_reader import TopicName, TopicReader
from common.settings.values import DurationS, Evolution, FromOffsets, LoadSetting, StartAt, StartValue
from common.tables.changes import STAGED_IDENTITY, IdentityColumns
from common.tables.urls import comparable

KAFKA_COLUMNS = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")


_KAFKA_SCHEME = "kafka://"


class Included(StrEnum):
    """The parts of a Kafka message that rows may have."""

    KEY = "key"
    HEADERS = "headers"


INCLUDED_COLUMNS = {Included.KEY: "_kafka_key", Included.HEADERS: "_kafka_headers"}


class Stream(TopicReader, SectionOfParts):
    """One `app_id`, its topics and its table."""

    table: str = Field(min_length=1, description="URL of the Delta table, or its name where `catalog_tables` has it.")
    catalog_tables: dict[str, str] = Field(
        default_factory=dict,
        description="Names of tables in Spark's catalogs, `schema.table` or `catalog.schema.table`, with the URL "
        "of each. `table`, `dead_letters`, `routes` and `template` may then be names; the loader "
        "registers tables that the catalog lacks, and refuses a name that stands for another object. "
        "See [loading.md](loading.md).",
        examples=[{"lake.shop.orders": "s3://lake/tables/orders"}],
    )
    record: RecordSettings = Field(default_factory=RecordSettings, alias="(record)")
    topology: str | None = Field(
        default=None,
        description="A function that makes the rows: `package.module:build`, which returns a `Topology` or a "
        "`StreamsBuilder`. The writer imports it; `columns` are then the table's.",
        examples=["shop.sessions:build"],
    )
    topology_packages: tuple[str, ...] = Field(
        default=(),
        description="Packages of yours that the `topology` imports and that are named like a part of this "
        "program (`common`, `bootstrap`, `delta_loader`): your modules then import yours. Applies to "
        "all topologies of the writer.",
        examples=[["common"]],
    )
    state_changelog: TopicName | None = Field(
        default=None,
        description="A Kafka topic for the changes that flushes make to the state of the topology's tasks; "
        "without one they are files in the stage, as snapshots always are. Markers name its messages "
        "by offset, so it must not be compacted, and must retain them for at least twice "
        "`writer.state_keep`. Several streams may share one. See [state.md](state.md).",
        examples=["sessions-changelog"],
    )
    max_task_idle_s: DurationS = Field(
        default=0.0,
        alias="max_task_idle",
        description="How long a task that joins topics waits for a topic that was read to its end while others "
        "have records: `0s` takes only the records that Kafka has already, more also waits for late "
        "producers. Available records are joined in the order of their times.",
        examples=["5s"],
    )
    shaping: ShapingSettings = Field(default_factory=ShapingSettings, alias="(shaping)")
    layout: LayoutSettings = Field(default_factory=LayoutSettings, alias="(layout)")
    start: StartValue = Field(
        default=StartAt.EARLIEST,
        description="Where a Kafka partition without any marker begins: `earliest`, `latest`, a time, or positions "
        "by partition.",
    )
    dead_letters: str = Field(
        default="",
        description="URL of the table for dead letters; by default the table's URL followed by `_dead_letters`. "
        "`kafka://topic` is the default with that `dead_letters_topic`.",
    )
    dead_letters_topic: TopicName | None = Field(
        default=None,
        description="A Kafka topic that gets the stream's dead letters too, each once. The loader sends those of "
        "records that a table refuses, and of replays. See [commands.md](commands.md#in-a-kafka-topic-too).",
    )
    routing: RoutingSettings = Field(default_factory=RoutingSettings, alias="(routing)")
    kafka_columns: bool = Field(
        default=True,
        description="Add `_kafka_topic`, `_kafka_partition`, `_kafka_offset` and `_kafka_timestamp` to every row.",
    )
    include: tuple[Included, ...] = Field(
        default=(),
        description="Parts of the Kafka message to add to every row: `key` makes the column `_kafka_key` (BINARY), "
        "`headers` makes `_kafka_headers` (ARRAY<STRUCT<key: STRING, value: BINARY>>, in Kafka's order; null for a "
        "message without headers). See [schema.md](schema.md).",
        examples=[["key", "headers"]],
    )
    load: LoadSetting = Field(
        default=LoadSetting.AUTO,
        description="How rows reach the tables: `add` adds the staged files as they are, without reading them; "
        "`append` has Spark write the rows into a few large files, as Delta's own writer does; "
        "`auto` adds where the table allows it, and appends elsewhere. `delta-loader status` shows "
        "the choice and the reason. `merge` treats rows as changes and requires the section `merge`. "
        "See [loading.md](loading.md).",
    )
    merge: MergeSettings | None = Field(
        default=None,
        description="With `load: merge` the table has one row per key, and records change it: upserts and "
        "deletes. See [change_events.md](change_events.md).",
    )
    evolution: Evolution = Field(
        default=Evolution.STRICT,
        description="Handling of differences between staged data and a table: `strict` holds the stream until an "
        "operator fixes them; `add` adds missing columns to the table, and is the default with `columns: "
        "from_registry` and `from_schema_file`; `widen` also widens types, as Delta's type widening does. With both, "
        "staged numbers of another type are cast where no value is lost, and become dead letters elsewhere.",
    )
    pace: PaceSettings = Field(default_factory=PaceSettings, alias="(pace)")

    valid_through_property_s: DurationS | None = Field(
        default=None,
        alias="valid_through_property",
        description="At most this often, such as `15m`, the loader also writes the time through which the table "
        "is complete into the table property `kafka_delta_express.valid_through`. null for never, "
        "because each write commits a metadata change, for which Delta refuses concurrent commits of "
        "others (an OPTIMIZE, a MERGE). Each load's commit has it anyway.",
    )
    table_services: StreamServices = Field(
        default_factory=StreamServices, description="Settings of this stream that override `table_services`."
    )

    @model_validator(mode="before")
    @classmethod
    def _located(cls, values: object) -> object:
        return with_implied(with_locations(with_main_table(_with_dead_letters_topic(values))))

    @field_validator("table", "dead_letters")
    @classmethod
    def _table(cls, value: str | None) -> str | None:
        return value if value is None else require_location(value)

    @field_validator("include")
    @classmethod
    def _include(cls, value: tuple[Included, ...]) -> tuple[Included, ...]:
        if len(set(value)) < len(value):
            refuse("has a part of the message twice; name each once")
        return value

    @model_validator(mode="after")
    def _defaults(self) -> Self:
        if not self.dead_letters:
            object.__setattr__(self, "dead_letters", self.table.rstrip("/") + "_dead_letters")
        if comparable(self.dead_letters) == comparable(self.table):
            refuse("dead_letters is the table itself; give it a URL of its own")
        return self

    @model_validator(mode="after")
    def _topics(self) -> Self:
        topic = self.dead_letters_topic
        if topic is not None and self.reads(topic):
            back = "which the stream itself reads"
            refuse(f"dead_letters_topic is {topic!r}, {back}; name another")
        for topic, _ in self.start.positions if isinstance(self.start, FromOffsets) else ():
            if topic is not None and not self.reads(topic):
                refuse(f"start has positions of {topic!r}, which is not in topics; name a topic of the stream")
        return self

    @property
    def kafka_column_names(self) -> tuple[str, ...]:
        """The table's columns for a record's position and time in Kafka; empty where it has none."""
        return KAFKA_COLUMNS if self.kafka_columns else ()

    @property
    def included_column_names(self) -> tuple[str, ...]:
        """The table's columns for the parts of a message that ``include`` names, in their fixed order."""
        return tuple(column for part, column in INCLUDED_COLUMNS.items() if part in self.include)

    @property
    def staged_identity(self) -> IdentityColumns | None:
        """The columns that its staged rows have in addition to the table's, to identify their records."""
        return STAGED_IDENTITY if self.load is LoadSetting.APPEND and not self.kafka_columns else None

    @property
    def row_tables(self) -> tuple[str, ...]:
        """The URLs of the tables for its rows, each once: the main table first."""
        others = (*self.routing.routes.values(), *(table.table for table in self.routing.other_tables))
        if not others:
            return (self.table,)
        by_place: dict[str, str] = {}
        for url in (self.table, *others):
            by_place.setdefault(comparable(url), url)
        return tuple(by_place.values())

    @property
    def has_several_columns(self) -> bool:
        """Whether rows of some of its tables are staged with other columns than those of its main table."""
        identity = self.staged_identity
        return any(
            section.columns is not None or self.at(url).staged_identity != identity
            for url, section in self.routing.sections.values()
        )

    @property
    def gains_by_table(self) -> bool:
        """Whether tables gain the columns of their own records only (common/settings/own_columns.py)."""
        has_columns = any(section.columns is not None for _, section in self.routing.sections.values())
        return self.record.evolves and (self.record.has_own_columns or has_columns)

    def at(self, url: str) -> Stream:
        """The stream as if that table were its main table: with its columns, keys and layout."""
        _, section = self.section_of(url)
        own: dict[str, object] = {} if section is None else section.overrides
        if section is not None and "z_order" in section.given:
            own["table_services"] = self.table_services.model_copy(update={"z_order": section.z_order})
        if self.merge is not None:  # all tables are merged
            merge = self._merge_at(url, self.merge)
            own |= {"merge": merge, "load": self.load if merge is not None else LoadSetting.AUTO}
        if url == self.table and not own:
            return self
        return self.model_copy(update={"table": url, **own})

    def _merge_at(self, url: str, merge: MergeSettings) -> MergeSettings | None:
        """How one of the tables is merged; None for a main table without rows."""
        if not (self.record.has_own_columns or merge.route_keys):
            return merge
        wanted = comparable(url)
        tables = {
            route: table for route, table in self.routing.route_settings.items() if comparable(table.table) == wanted
        }
        if self.record.has_own_columns and not tables:
            return None
        given = (merge.route_keys[route] for route in tables if route in merge.route_keys)
        agreed = (table.keys for table in tables.values() if isinstance(table, AppearedTable))
        return merge.model_copy(update={"keys": next(given, merge.keys) or next(agreed, ())})

    def key_of(self, url: str, name: str) -> str:
        """The full key of a setting of one of its row tables."""
        key, section = self.section_of(url)
        return f"streams[].{name}" if section is None or name not in section.given else f"streams[].{key}.{name}"

    def section_of(self, url: str) -> tuple[str, RouteTable | None]:
        """The key and the settings of one of its tables; None for one like the stream's."""
        sections = self.routing.sections
        wanted = comparable(url) if sections else ""
        matching = ((key, section) for key, (table_url, section) in sections.items() if comparable(table_url) == wanted)
        return next(matching, ("", None))

    def load_of(self, url: str) -> LoadSetting:
        """The load mode of one of its tables; dead letters are always appended."""
        return self.at(url).load if url in self.row_tables else LoadSetting.AUTO

    @property
    def secondary_tables(self) -> tuple[str, ...]:
        """The URLs of its secondary tables: those of its routes, and the one for dead letters."""
        return (*self.row_tables[1:], self.dead_letters)

    @property
    def tables(self) -> tuple[str, ...]:
        """The URLs of all its tables, the main one first and the one for dead letters last."""
        return (self.table, *self.secondary_tables)

    @property
    def table_locations(self) -> tuple[tuple[str, str], ...]:
        """The locations of its tables, with the keys that set them."""
        own = (("streams[].table", self.table), ("streams[].dead_letters", self.dead_letters))
        tables = (
            (f"streams[].tables[{number}]", table.table) for number, table in enumerate(self.routing.other_tables)
        )
        return (*own, *((f"streams[].routes.{value}", url) for value, url in self.routing.routes.items()), *tables)

    @property
    def may_merge(self) -> bool:
        """Whether chains of several topics together (common/stage/merged.py) may belong to this stream."""
        return self.topology is not None and self.several_topics


def _with_dead_letters_topic(values: object) -> object:
    """A stream's settings, with the topic of ``dead_letters: kafka://topic`` as `dead_letters_topic`."""
    given = str(values.get("dead_letters", "")) if isinstance(values, dict) else ""
    if given.startswith("kafka:") and not given.startswith(_KAFKA_SCHEME):
        refuse(f"dead_letters names no topic; did you mean {_KAFKA_SCHEME}{given.removeprefix('kafka:').strip('/')}?")
    if not isinstance(values, dict) or not given.startswith(_KAFKA_SCHEME):
        return values
    if values.get("dead_letters_topic") is not None:
        refuse("dead_letters is a topic, and dead_letters_topic is another one; write dead_letters as the table's URL")
    others = {key: value for key, value in values.items() if key != "dead_letters"}
    return {**others, "dead_letters_topic": values["dead_letters"].removeprefix(_KAFKA_SCHEME)}
