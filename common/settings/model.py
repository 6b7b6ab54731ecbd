"""Every setting, declared once: its key, type, default, and the sentence that the reference page shows.

Rules: unknown keys are refused; a name in the file carries no unit, the attribute in the program does (``flush_after:
60s`` is ``flush_after_s``); settings that contradict each other are refused here and not at run time.
"""

from collections import Counter
from typing import Annotated, Self

from pydantic import AfterValidator, Field, PrivateAttr, field_validator, model_validator

from common.settings.checks import checked
from common.settings.checks.tables import check_shared, check_templates, nested
from common.settings.masking import References
from common.settings.overlap import may_share, shared_topics
from common.settings.section import Option, Section, refuse
from common.settings.services import TableServicesSettings
from common.settings.stream import Stream
from common.settings.topic_reader import TopicName, TopicOwners
from common.settings.values import (
    CODECS,
    OFF,
    ON_MARKER,
    RETENTION_ON_MARKER,
    Address,
    DurationS,
    HostName,
    HttpToken,
    LoadSchedule,
    Native,
    NativeChoice,
    OffOrSchedule,
    SizeBytes,
    Workers,
)
from common.spans import Topic
from common.tables.urls import require_url

# Kafka properties that the program itself controls, and the key that sets them here.
_RESERVED_KAFKA = {
    "group.id": "writer.group_id",
    "enable.auto.commit": "writer.report_positions",
    "auto.offset.reset": "streams[].start",
    "enable.auto.offset.store": "writer.report_positions",
}
_TOKENS_FROM = {"sasl.oauthbearer.method", "enable.sasl.oauthbearer.unsecure.jwt"}
"""Without one of them, librdkafka waits for tokens from the program, which provides none."""


HttpAddress = Annotated[
    Address,
    Field(
        description="Where to serve the status page, `/healthcheck`, `/ready`, `/version` and `/metrics` (http.md); "
        "null for nowhere, port 0 for any free port."
    ),
]
HttpHosts = Annotated[
    tuple[HostName, ...],
    Field(
        description="Names under which `http` is reached, where they can be registered by others: "
        "`pipeline.example.com`, `*.example.com`, or `*` for any. IP addresses, names without a dot, this machine's "
        "own name and those below `.localhost`, `.svc` and `.cluster.local` need no entry (http.md).",
        examples=[["pipeline.example.com"]],
    ),
]


class StageSettings(Section):
    """Where the done markers live."""

    url: str = Field(
        min_length=1,
        description="Root of the stage, any fsspec URL: `s3://bucket/stage`, `file:///data/stage`, `memory://stage`. "
        "Two configs that read the same topic need stages of their own.",
        examples=["s3://lake/stage"],
    )
    storage_options: dict[str, object] = Field(
        default_factory=dict,
        description="Passed to fsspec for the stage and for every table (for S3: `key`, `secret`, `endpoint_url`, "
        "`profile`, `client_kwargs`…); the loader derives Spark's `fs.s3a.*` settings from it.",
    )

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        return require_url(value)


class WriterSettings(Section):
    """The stage writers."""

    group_id: str = Field(
        default="kafka_delta_express",
        min_length=1,
        description="Kafka consumer group. It shares partitions between the writers; its offsets are never the truth.",
    )
    flush_after_s: DurationS = Field(
        default=60.0,
        alias="flush_after",
        gt=0,
        description="Allowed latency: a partition is flushed this long after the first record entered its "
        "buffer, even if no other record arrives. Each partition uses its own share, 0.8 to 1 of it, "
        "so that many partitions do not flush at the same moment.",
    )
    flush_bytes: SizeBytes = Field(
        default=128 * 2**20, gt=0, description="Flush a partition when its buffer holds this much Parquet."
    )
    flush_records: int = Field(
        default=1_000_000,
        gt=0,
        description="Flush a partition when its buffer holds this many Kafka records. Checked after each poll, "
        "so a flush may exceed it by up to `consume_records`.",
    )
    compression: str = Field(
        default="snappy",
        pattern=CODECS,
        description="Compression of the Parquet files: `snappy`, or `zstd` for smaller files and more CPU time. Files "
        "that the loader writes itself (`load: append` and `merge`) follow the table's property "
        "`delta.parquet.compression.codec`, and otherwise Spark's setting. A loader of an older release refuses "
        "`zstd`: upgrade loaders first.",
    )
    max_partition_values: int = Field(
        default=100,
        gt=0,
        description="Maximum number of partition values that get a data file of their own in one flush of a "
        "Kafka partition. With more, the rows go to the stage in large files, and the loader has "
        "Spark distribute them.",
    )
    memory_bytes: SizeBytes = Field(
        default=2**30,
        alias="memory",
        ge=2**20,
        description="Limit for the memory of one writer: librdkafka's prefetch, messages being converted, "
        "buffers and uploads. Near the limit the largest buffers are flushed and their partitions "
        "paused; above it nothing is read. A process needs about 200 MiB on top of it.",
    )
    workers: Workers = Field(
        default=1,
        description="Number of processes of one `stage-writer run`, each a member of the group with its share of "
        "`memory`; `auto` is one per core. `http` serves the pages of all. If one process dies, the "
        "others are stopped and the command exits with 1, for its supervisor to restart it.",
    )
    revoke_timeout_s: DurationS = Field(
        default=20.0,
        alias="revoke_timeout",
        description="How long a writer may flush a partition that is revoked, and how long a writer that is "
        "stopped may convert and flush. Unfinished work is dropped and read again by the next owner.",
    )
    consume_records: int = Field(
        default=10_000, gt=0, le=1_000_000, description="Maximum number of records taken from librdkafka in one call."
    )
    upload_threads: int = Field(
        default=4, gt=0, le=256, description="Number of flushes that are encoded and uploaded at the same time."
    )
    native: NativeChoice = Field(
        default=Native.AUTO,
        description="The native reader in C, which fetches messages from librdkafka and decodes ordinary ones: "
        "`auto` uses it if it is built, `on` refuses to start without it, `off` is for comparison. "
        "Without it results are the same, at many times the CPU per message; `check` says whether it is there.",
    )
    report_positions: bool = Field(
        default=False,
        description="Also commit staged positions to the consumer group, for lag tools. This program never reads them.",
    )
    http: HttpAddress = "127.0.0.1:8080"
    http_hosts: HttpHosts = ()
    dead_letter_alarm: float | None = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Share of a stream's newest records (about 10,000) that may become dead letters before the "
        "log, the status page, the metrics and `/healthcheck` warn; `stage-writer check` and `run "
        "--until-caught-up` then exit with 3. null disables it.",
    )
    dead_letter_samples: int = Field(
        default=0,
        ge=0,
        le=10,
        description="Number of dead letters per class that the status page shows: their offsets, and their "
        "values with each letter as x and each digit as 9. 0 for none.",
    )
    state_folder: str | None = Field(
        default=None,
        min_length=1,
        description="A local folder for the state stores of topologies with `persistent=True`. A task that finds "
        "its state there continues from it; other content is deleted, because the stage has it. "
        "Writers and workers may share one folder.",
        examples=["/var/lib/kafka-delta-express/state"],
    )
    state_keep_s: DurationS = Field(
        default=86_400.0,
        alias="state_keep",
        description="How long state files of topologies stay in the stage after the last marker that needs them "
        "is gone. A marker that an operator has put aside can be put back for that long.",
    )
    state_queries: bool = Field(
        default=False,
        description="Serve `GET /state`, look-ups in topologies' state stores (http.md), to callers with `http_token`.",
    )
    http_token: HttpToken = Field(
        default=None,
        description="The secret that `POST /pause` and `/resume` must send (`Authorization: Bearer …`), of 16 "
        "characters at least; without one they are refused.",
        examples=["${HTTP_TOKEN}"],
    )

    @model_validator(mode="after")
    def _state_queries(self) -> Self:
        if self.state_queries and (self.http is None or self.http_token is None):
            missing = "http" if self.http is None else "http_token"
            refuse(f"state_queries shows what records hold, and there is no {missing}; give {missing}, or remove it")
        return self


class LoaderSettings(Section):
    """The delta loader."""

    schedule: LoadSchedule = Field(
        default="15m",
        description="When to load: an interval such as `15m`, a cron line such as `*/15 * * * *`, or "
        "`on-marker`: on notification by the writers, so that records are readable seconds after "
        "their flush (schedules.md).",
    )
    control_topic: TopicName | None = Field(
        default=None,
        description="With `on-marker`: a Kafka topic through which writers notify the loader of new markers, "
        "instead of objects in the stage: no requests to the store, and milliseconds instead of a "
        "second. Writers need WRITE on it, the loader READ; it must exist and have no other use "
        "(schedules.md).",
        examples=["kafka-delta-express-control"],
    )
    max_commits_per_minute: int = Field(
        default=6,
        gt=0,
        le=600,
        description="With `on-marker`: maximum number of loads of one stream per minute, evenly spaced. Each is "
        "one commit to each of its tables that has new data; a backlog takes as many commits as "
        "`max_files` and `max_bytes` require.",
    )
    marker_retention_s: DurationS = Field(
        default=86400.0,
        alias="marker_retention",
        description="Settled markers are kept this long; the last marker of each Kafka partition is always kept. "
        "With `on-marker` the default is `10m`, because each load lists all markers.",
    )
    lease_s: DurationS = Field(
        default=15.0,
        alias="lease",
        description="One of several loaders of a stream loads it, and the others stand by; loaders of other "
        "streams of the same stage do not wait. A loader that died is replaced after this time, one "
        "that was stopped at once. At least `1s`; `0s` disables the lease: then every loader loads, "
        "which is safe but wastes work.",
    )
    clean_up: OffOrSchedule = Field(
        default=OFF,
        description="When to remove unreferenced objects, as `delta-loader clean` does: `off`, an interval such "
        "as `1d`, or a cron line. Loads do not wait for it.",
    )
    clean_up_older_than_s: DurationS = Field(
        default=7 * 86400.0,
        alias="clean_up_older_than",
        description="The safe age: younger objects are not removed. At least the sum of `writer.flush_after`, "
        "`writer.revoke_timeout`, an hour and `marker_retention`.",
    )
    max_files: int = Field(default=10_000, gt=0, description="Maximum number of data files in one Delta commit.")
    max_bytes: SizeBytes = Field(
        default=2**40, gt=0, description="Maximum size of data files in one Delta commit; one marker always fits."
    )
    parallel_streams: int = Field(
        default=4,
        ge=1,
        le=64,
        description="How many streams are loaded at a time. A slow or hanging stream does not block the others: "
        "after half a minute it yields its slot.",
    )
    http: HttpAddress = "127.0.0.1:8081"
    http_hosts: HttpHosts = ()
    http_token: HttpToken = Field(
        default=None,
        description="The secret that `POST /load`, `/pause` and `/resume` must send (`Authorization: Bearer …`), "
        "of 16 characters at least; without one they are refused.",
        examples=["${HTTP_TOKEN}"],
    )
    spark: dict[str, Option] = Field(
        default_factory=dict,
        description="Passed to the SparkSession; overrides the settings of this program.",
        examples=[{"spark.master": "local[*]"}],
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: object) -> object:
        """The default of `marker_retention` depends on the schedule."""
        if not isinstance(value, dict) or value.get("schedule") != ON_MARKER:
            return value
        is_given = value.keys() & {"marker_retention", "marker_retention_s"}
        return value if is_given else {**value, "marker_retention": RETENTION_ON_MARKER}

    @field_validator("lease_s")
    @classmethod
    def _lease(cls, value: float) -> float:
        if 0 < value < 1:
            refuse("is too short to be renewed in time; give at least 1s, or 0s for no lease")
        return value


class LogSettings(Section):
    """The services' log, on standard error."""

    level: str = Field(default="info", pattern="^(debug|info|warning|error)$", description="Lowest level shown.")
    format: str = Field(
        default="auto",
        pattern="^(auto|json|text)$",
        description="`json` for machines, `text` for people, `auto` for text on a terminal and JSON elsewhere.",
    )


class Settings(Section):
    """The whole file."""

    kafka: dict[str, Option] = Field(
        description="librdkafka properties, passed through.", examples=[{"bootstrap.servers": "localhost:9092"}]
    )
    stage: StageSettings = Field(description="Where the done markers live.")
    writer: WriterSettings = Field(default_factory=WriterSettings, description="The stage writers.")
    loader: LoaderSettings = Field(default_factory=LoaderSettings, description="The delta loader.")
    table_services: TableServicesSettings = Field(
        default_factory=TableServicesSettings,
        description="What the loader does for the tables between loads: OPTIMIZE, VACUUM, checkpoints and statistics. "
        "See [table_services.md](table_services.md).",
    )
    logs: LogSettings = Field(default_factory=LogSettings, description="The log of the services, on standard error.")
    schema_registry: dict[str, Option] = Field(
        default_factory=dict,
        description="The registry of streams with `framing: confluent`: its `url`, and any other setting of "
        "confluent-kafka's SchemaRegistryClient (`basic.auth.user.info`, `ssl.ca.location`, `bearer.auth.*`, "
        "`timeout`…). Needs the extra `[schema-registry]`.",
        examples=[{"url": "http://localhost:8081", "basic.auth.user.info": "${REGISTRY_USER}:${REGISTRY_PASSWORD}"}],
    )
    streams: tuple[Annotated[Stream, AfterValidator(checked)], ...] = Field(
        min_length=1, description="What to load, from where to where."
    )

    @field_validator("kafka")
    @classmethod
    def _kafka(cls, value: dict[str, Option]) -> dict[str, Option]:
        if not value.get("bootstrap.servers"):
            refuse("has no bootstrap.servers; add, for example, bootstrap.servers: localhost:9092")
        for key, instead in _RESERVED_KAFKA.items():
            if key in value:
                refuse(f"sets {key}, which this program sets itself; use {instead} instead")
        if value.get("isolation.level", "read_committed") != "read_committed":
            refuse("sets an isolation.level that reads records of aborted transactions; remove it")
        mechanism = value.get("sasl.mechanism", value.get("sasl.mechanisms"))
        if mechanism == "OAUTHBEARER" and not _TOKENS_FROM & value.keys():
            refuse("has sasl.mechanism OAUTHBEARER but no source of tokens; add sasl.oauthbearer.method: oidc")
        return value

    @model_validator(mode="after")
    def _registry(self) -> Self:
        framed = next((stream for stream in self.streams if stream.record.framing != "none"), None)
        if framed is not None and not self.schema_registry.get("url"):
            framing = framed.record.framing
            refuse(f"the stream {framed.app_id!r} has framing: {framing}, but schema_registry.url is missing; add it")
        return self

    @model_validator(mode="after")
    def _streams(self) -> Self:
        for app_id, count in Counter(stream.app_id for stream in self.streams).items():
            if count > 1:
                refuse(f"two streams have the app_id {app_id!r}; give each its own")
        check_shared(self.streams)
        topics = {topic for stream in self.streams for topic in stream.topics}
        for refused in shared_topics(self.streams, topics).values():
            refuse(f"{refused.problem}; {refused.remedy}")
        tables = [(key, url) for stream in self.streams for key, url in stream.table_locations]
        templates = [
            ("streams[].route_table", stream.routing.route_table)
            for stream in self.streams
            if stream.routing.route_table is not None
        ]
        check_templates(self.stage.url, self.streams)
        problem = nested(self.stage.url, [*tables, *templates])
        if problem is not None:
            raise ValueError(problem)
        for stream in self.streams:
            self._require_unread(f"state_changelog of {stream.app_id!r}", stream.state_changelog)
            stream.share(self._owners)
        control_topic, schedule = self.loader.control_topic, self.loader.schedule
        if control_topic is not None and not self.streams_on_marker:
            refuse(
                f"loader.control_topic is {control_topic!r}, and schedule is {schedule!r}: only a loader with "
                f"schedule: {ON_MARKER} reads it; set that schedule, or remove control_topic"
            )
        self._require_unread("loader.control_topic", control_topic)
        return self

    def _require_unread(self, name: str, topic: str | None) -> None:
        """Raise ValueError for a topic of this program's own that a stream reads, and so would stage."""
        reader = next((stream for stream in self.streams if topic is not None and stream.reads(topic)), None)
        if reader is not None:
            refuse(f"{name} is {topic!r}, which the stream {reader.app_id!r} reads; use a topic that no stream reads")

    _references: References = PrivateAttr(default_factory=References)
    _owners: TopicOwners = PrivateAttr(default_factory=TopicOwners)

    @property
    def owners(self) -> TopicOwners:
        """The known owners of topics that several streams read, shared with its streams."""
        return self._owners

    @property
    def references(self) -> References:
        """Values from the environment and from files, shown as written in the config."""
        return self._references

    def remember(self, references: References) -> None:
        self._references = references

    def stream_of(self, chain: str) -> Stream | None:
        """The stream whose chains have this name: the first that takes it."""
        return next((stream for stream in self.streams if stream.takes(chain)), None)

    @property
    def streams_on_marker(self) -> tuple[Stream, ...]:
        """The streams that are loaded when writers report new markers."""
        return tuple(stream for stream in self.streams if (stream.pace.schedule or self.loader.schedule) == ON_MARKER)

    @property
    def may_share(self) -> bool:
        """Whether topics may have several chains, or one of another name: once the owners in the stage are known."""
        return may_share(self.streams) or bool(self.owners.by_topic or self.owners.expected)

    def chains_of(self, topic: str) -> list[Topic]:
        """The names of all chains of a Kafka topic, in the order of the streams."""
        return [stream.chain_of(topic) for stream in self.streams if stream.reads(topic)]
