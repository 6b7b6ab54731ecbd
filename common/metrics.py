"""The metric catalog: every metric of both services, declared once.

Rules: names and units follow Prometheus' conventions (base units, ``_total`` for counters); a label never holds record
content; docs/metrics.md is generated from this module. `Metrics` creates only those that a service uses.
"""

from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    sentence: str
    buckets: tuple[float, ...] = ()


_SECONDS = (0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_RECORDS = (1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0)
_BYTES = tuple(float(2**power) for power in range(12, 31, 2))


def _counter(name: str, labels: tuple[str, ...], sentence: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, labels, sentence)


def _gauge(name: str, labels: tuple[str, ...], sentence: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, labels, sentence)


def _histogram(name: str, labels: tuple[str, ...], sentence: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, MetricKind.HISTOGRAM, labels, sentence, buckets)


WRITER_RECORDS = _counter("stage_writer_records_total", ("topic",), "Kafka records consumed.")
WRITER_VALUE_BYTES = _counter(
    "stage_writer_value_bytes_total", ("topic",), "Bytes of the consumed records' values, as Arrow holds them."
)
WRITER_BATCH_RECORDS = _histogram(
    "stage_writer_batch_records", (), "Records of a stream that were converted together.", _RECORDS
)
WRITER_CONVERT_SECONDS = _histogram("stage_writer_convert_seconds", (), "Time to decode and convert them.", _SECONDS)
WRITER_REPEATED = _counter(
    "stage_writer_repeated_records_total", ("topic",), "Records that librdkafka delivered again, passed over."
)
WRITER_TOMBSTONES = _counter("stage_writer_tombstones_total", ("topic",), "Records without a value, skipped.")
WRITER_FILTERED = _counter(
    "stage_writer_filtered_total", ("app_id",), "Records that `where` left out, or that change no row."
)
WRITER_VIOLATIONS = _counter(
    "stage_writer_expectation_violations_total",
    ("app_id", "rule"),
    "Records that break a rule of `expect`: dead letters, or staged and counted.",
)
WRITER_DEAD_LETTERS = _counter(
    "stage_writer_dead_letters_total", ("app_id", "error_class"), "Records sent to the dead-letter table."
)
WRITER_DEAD_LETTER_SHARE = _gauge(
    "stage_writer_dead_letter_share",
    ("app_id",),
    "Share of a stream's newest records that became dead letters, 0 to 1.",
)
WRITER_SAMPLED_RECORDS = _gauge(
    "stage_writer_sampled_records",
    ("app_id",),
    "Records since the start whose fields were compared with the declared ones: one in a thousand.",
)
WRITER_SAMPLED_UNDECLARED = _gauge(
    "stage_writer_sampled_undeclared_fields",
    ("app_id", "field"),
    "How many of the sampled records have this field, which is not declared, so that it is dropped.",
)
WRITER_TOPOLOGY_DROPPED = _counter(
    "stage_writer_topology_dropped_total",
    ("app_id", "reason"),
    "Records that a topology's processors left out, such as those that were too late.",
)
WRITER_STATE_RESTORED = _counter(
    "stage_writer_state_restored_bytes_total",
    ("app_id",),
    "Bytes of state files, and of changes in topics, read to restore topologies' tasks.",
)
WRITER_CHANGELOG_WRITTEN_BYTES = _counter(
    "stage_writer_changelog_written_bytes_total",
    ("topic",),
    "Bytes of state changes written to a changelog topic (`state_changelog`), including those of lost claims.",
)
WRITER_CHANGELOG_WRITTEN = _counter(
    "stage_writer_changelog_written_messages_total", ("topic",), "Messages that held these bytes."
)
WRITER_CHANGELOG_READ_BYTES = _counter(
    "stage_writer_changelog_restored_bytes_total",
    ("topic",),
    "Bytes of changes read from a changelog topic to restore tasks.",
)
WRITER_CHANGELOG_READ = _counter(
    "stage_writer_changelog_restored_messages_total", ("topic",), "Messages that held these bytes."
)
WRITER_CHANGELOG_FIT = _gauge(
    "stage_writer_changelog_topic_fit",
    ("topic",),
    "1 while a changelog topic retains changes for long enough; 0 after its configuration was changed so that it does "
    "not, and states go to the stage. Checked once a minute.",
)
WRITER_STATE_RESTORE_SECONDS = _histogram(
    "stage_writer_state_restore_seconds",
    ("app_id",),
    "Time to restore a task; very little from its own disk.",
    _SECONDS,
)
WRITER_STATE_BYTES = _gauge(
    "stage_writer_state_bytes",
    ("app_id", "topic", "partition"),
    "Size of the state of a topology's task, in memory or on disk.",
)
WRITER_STATE_ENTRIES = _gauge(
    "stage_writer_state_entries", ("app_id", "topic", "partition"), "About how many entries a task's stores have."
)
WRITER_FLUSHES = _counter("stage_writer_flushes_total", ("app_id", "reason"), "Flushes sealed by a marker, by reason.")
WRITER_FILES = _counter("stage_writer_files_total", ("app_id",), "Parquet files written.")
WRITER_BYTES = _counter("stage_writer_bytes_total", ("app_id",), "Bytes of Parquet written.")
WRITER_ROWS = _counter("stage_writer_rows_total", ("app_id",), "Rows staged, without dead letters.")
WRITER_LOST_CLAIMS = _counter(
    "stage_writer_lost_claims_total", ("topic",), "Flushes discarded because another writer had claimed the position."
)
WRITER_OUTBOX_RECORDS = _counter(
    "stage_writer_outbox_records_total", ("app_id",), "Records of a topology that were delivered to Kafka topics."
)
WRITER_DROPPED = _counter(
    "stage_writer_dropped_buffers_total",
    ("reason",),
    "Buffers dropped with their partition; its owner reads them again.",
)
WRITER_FLUSH_SECONDS = _histogram(
    "stage_writer_flush_seconds", (), "From the decision to flush until the marker is there.", _SECONDS
)
WRITER_FILE_BYTES = _histogram("stage_writer_file_bytes", (), "Size of one Parquet file.", _BYTES)
WRITER_BUFFERED_BYTES = _gauge("stage_writer_buffered_bytes", (), "Memory in all buffers.")
WRITER_PAUSED = _gauge("stage_writer_paused", (), "Kafka partitions that are paused because memory is short.")
WRITER_PAUSES = _counter(
    "stage_writer_pauses_total",
    (),
    "How often a Kafka partition was paused because memory was short or because it was ahead of others.",
)
WRITER_MEMORY_BOUND = _gauge("stage_writer_buffer_bound_bytes", (), "Limit for the memory of all buffers.")
WRITER_HELD = _gauge("stage_writer_held_partitions", ("reason",), "Kafka partitions that are held, by reason.")
WRITER_PAUSED_BY_REQUEST = _gauge(
    "stage_writer_paused_by_request", (), "1 from `POST /pause` to `POST /resume`, else 0."
)
WRITER_STREAM_PAUSED = _gauge(
    "stage_writer_stream_paused", ("app_id",), "1 while staging of a stream is paused by an operator, else 0."
)
WRITER_PARTITIONS = _gauge("stage_writer_assigned_partitions", (), "Kafka partitions that this writer owns.")
WRITER_STAGED_POSITION = _gauge(
    "stage_writer_staged_position", ("topic", "partition"), "The next position to be staged."
)
WRITER_KAFKA_END = _gauge(
    "stage_writer_kafka_end_position", ("topic", "partition"), "End of the Kafka partition, read every 10 seconds."
)
WRITER_LAG_RECORDS = _gauge(
    "stage_writer_lag_records",
    ("topic", "partition"),
    "Positions in Kafka that are not staged, in this writer's partitions.",
)
WRITER_LAG_SECONDS = _gauge(
    "stage_writer_lag_seconds", ("topic", "partition"), "Age of the oldest record in Kafka that is not staged."
)
WRITER_NOTIFICATIONS = _counter(
    "stage_writer_news_total",
    ("way",),
    "Notifications of new markers for a loader with `schedule: on-marker`: messages that the control topic accepted "
    "(`topic`), and objects in the stage (`stage`).",
)
WRITER_CONTROL_TOPIC = _gauge(
    "stage_writer_control_topic_reached",
    (),
    "1 while the control topic accepts this writer's messages, 0 while notifications go to the stage; only with "
    "`loader.control_topic`.",
)
WRITER_LAST_FLUSH = _gauge("stage_writer_last_flush_timestamp_seconds", (), "When the last flush was sealed.")

LOADER_COMMITS = _counter("delta_loader_commits_total", ("app_id", "outcome"), "Delta commits tried, by outcome.")
LOADER_CONFLICTS = _counter(
    "delta_loader_conflicts_total",
    ("app_id",),
    "Commits, of loads and of replacements, that conflicted with another program's and are planned again.",
)
LOADER_FILES = _counter("delta_loader_files_total", ("app_id",), "Data files added to tables.")
LOADER_ROWS = _counter("delta_loader_rows_total", ("app_id",), "Rows added to tables, dead letters included.")
LOADER_BYTES = _counter("delta_loader_bytes_total", ("app_id",), "Bytes of Parquet added to tables.")
LOADER_SETTLED = _counter("delta_loader_settled_markers_total", ("app_id",), "Markers deleted after their retention.")
LOADER_STRAYS = _counter(
    "delta_loader_strays_total", ("app_id",), "Late claims of freed positions, detected and moved aside."
)
LOADER_COLUMNS_GAINED = _counter(
    "delta_loader_columns_gained_total", ("app_id",), "Columns added to tables because records had their fields."
)
LOADER_REPLACEMENTS = _counter(
    "delta_loader_replacements_total", ("app_id",), "Requests to replace a range (`stage-writer replay`) carried out."
)
LOADER_REPLACEMENTS_LEFT = _gauge(
    "delta_loader_replacements_left",
    ("app_id",),
    "Requests to replace a range that the last run left: they wait, were refused, failed, or conflicted.",
)
LOADER_CLEANED = _counter(
    "delta_loader_cleaned_total",
    ("what",),
    "Objects that the clean-up removed: data files, stray markers, outboxes, uploads.",
)
LOADER_RUNS = _counter("delta_loader_runs_total", ("outcome",), "Scheduled runs, by outcome.")
LOADER_TURNS = _counter(
    "delta_loader_turns_total",
    ("reason",),
    "Loads by what triggered them: the `start` (also the end of a pause, or a lease that is back), the `schedule`, a "
    "writer's notification (`on_marker`), or a request (`asked`).",
)
LOADER_CONTROL_TOPIC = _gauge(
    "delta_loader_control_topic_heard",
    (),
    "1 while the loader reads the control topic, 0 while it cannot and lists the stage every second instead; only with "
    "`loader.control_topic`.",
)
LOADER_CONTROL_MESSAGES = _counter(
    "delta_loader_control_messages_total",
    ("kind",),
    "Messages of the control topic: of writers about streams of this loader (`news`), and `other` ones.",
)
LOADER_RUN_SECONDS = _histogram("delta_loader_run_seconds", (), "One run over all streams.", _SECONDS)
LOADER_UNFINISHED = _gauge(
    "delta_loader_unfinished_streams",
    (),
    "Streams whose load went on when the run ended: they have much to load, or a commit hangs.",
)
LOADER_COMMIT_SECONDS = _histogram("delta_loader_commit_seconds", (), "One Delta commit.", _SECONDS)
LOADER_CHECKPOINTS = _counter(
    "delta_loader_checkpoints_total",
    ("outcome",),
    "Checkpoints that were due after a commit and are written in the background: written or failed.",
)
LOADER_CHECKPOINT_SECONDS = _histogram("delta_loader_checkpoint_seconds", (), "One such checkpoint.", _SECONDS)
LOADER_WAITING = _gauge("delta_loader_waiting_markers", ("app_id",), "Markers staged and not loaded.")
LOADER_HELD = _gauge("delta_loader_held_partitions", ("app_id", "reason"), "Kafka partitions held, by reason.")
LOADER_LEFT_OUT = _gauge(
    "delta_loader_tables_left_out", ("app_id",), "Tables that failed in the last run, or still lack rows."
)
LOADER_LOADED_POSITION = _gauge(
    "delta_loader_loaded_position", ("topic", "partition"), "The next position to be loaded."
)
LOADER_LAG = _gauge("delta_loader_lag_positions", ("topic", "partition"), "Positions that are staged and not loaded.")
LOADER_LAG_SECONDS = _gauge(
    "delta_loader_lag_seconds", ("topic", "partition"), "Age of the oldest staged marker that is not loaded."
)
LOADER_STAGED_POSITION = _gauge(
    "delta_loader_staged_position",
    ("topic", "partition"),
    "End of what was staged of the Kafka partition at the last load.",
)
LOADER_KAFKA_END = _gauge(
    "delta_loader_kafka_end_position", ("topic", "partition"), "End of the Kafka partition, read every 10 seconds."
)
LOADER_KAFKA_LAG_RECORDS = _gauge(
    "delta_loader_kafka_lag_records", ("topic", "partition"), "Positions in Kafka that are not loaded."
)
LOADER_KAFKA_LAG_SECONDS = _gauge(
    "delta_loader_kafka_lag_seconds", ("topic", "partition"), "Age of the oldest record in Kafka that is not loaded."
)
LOADER_MARKERS = _gauge("delta_loader_markers", ("app_id",), "Markers in the stage, loaded ones included.")
LOADER_DEAD_LETTERS = _counter(
    "delta_loader_dead_letters_total", ("app_id", "error_class"), "Dead letters of the markers that were loaded."
)
LOADER_LOADING = _gauge("delta_loader_loading", (), "1 while a load is in progress, else 0.")
LOADER_VALID_THROUGH = _gauge(
    "delta_loader_valid_through_timestamp_seconds", ("app_id",), "All records up to this record time are in the table."
)
LOADER_UNFIT = _gauge(
    "delta_loader_unfit", ("app_id",), "1 while a stream's settings and tables are incompatible, else 0."
)
LOADER_FAILURES = _gauge("delta_loader_consecutive_failures", ("app_id",), "Failed runs since the last success.")
LOADER_LEASE_HELD = _gauge(
    "delta_loader_lease_held", (), "1 while this loader holds the lease of a stream and may load, 0 while it stands by."
)
LOADER_STREAM_LEASE_HELD = _gauge(
    "delta_loader_stream_lease_held",
    ("app_id",),
    "1 while this loader holds the lease of the stream and loads it, 0 while it stands by for it.",
)
LOADER_PAUSED_BY_REQUEST = _gauge(
    "delta_loader_paused_by_request", (), "1 from `POST /pause` to `POST /resume`, else 0."
)
LOADER_STREAM_PAUSED = _gauge(
    "delta_loader_stream_paused", ("app_id",), "1 while loading of a stream is paused by an operator, else 0."
)
LOADER_LAST_SUCCESS = _gauge(
    "delta_loader_last_success_timestamp_seconds", (), "When a run last ended without failure."
)

SERVICES_PIECES = _counter(
    "delta_loader_services_pieces_total",
    ("service", "outcome"),
    "Maintenance tasks of the table services: done, given_up (aborted by a conflicting commit) or failed.",
)
SERVICES_SECONDS = _histogram(
    "delta_loader_services_seconds", ("service",), "Duration of a maintenance task.", _SECONDS
)
SERVICES_FILES_REMOVED = _counter(
    "delta_loader_services_files_removed_total",
    ("service",),
    "Files that OPTIMIZE replaced, or that VACUUM deleted from the store.",
)
SERVICES_FILES_ADDED = _counter(
    "delta_loader_services_files_added_total", ("service",), "Files that OPTIMIZE wrote in their place."
)
SERVICES_BYTES_REMOVED = _counter(
    "delta_loader_services_bytes_removed_total", ("service",), "Bytes of the files that were replaced or deleted."
)
SERVICES_BYTES_ADDED = _counter(
    "delta_loader_services_bytes_added_total", ("service",), "Bytes that OPTIMIZE wrote in their place."
)
SERVICES_LEFT = _gauge(
    "delta_loader_services_pieces_left",
    ("service",),
    "Maintenance tasks that the last run of the table services left undone, because of window, budget or failure.",
)
SERVICES_LAST_RUN = _gauge(
    "delta_loader_services_last_run_timestamp_seconds", (), "When the table services last came to the end of a run."
)

ALL_METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._made: dict[str, Counter | Gauge | Histogram] = {}
        self._making = Lock()

    def add(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        made = self._labelled(metric, labels)
        if not isinstance(made, Counter):
            raise TypeError(metric.name)
        made.inc(amount)

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        made = self._labelled(metric, labels)
        if not isinstance(made, Gauge):
            raise TypeError(metric.name)
        made.set(value)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        made = self._labelled(metric, labels)
        if not isinstance(made, Histogram):
            raise TypeError(metric.name)
        made.observe(value)

    def forget(self, metric: Metric, **labels: str) -> None:
        """Remove the value of a gauge with these labels; without labels all values, before they are set again."""
        made = self._made.get(metric.name)
        if made is not None and labels:
            with suppress(KeyError):
                made.remove(*(labels[name] for name in metric.labels))
        elif made is not None:
            made.clear()

    def with_process(self) -> None:
        """Also export the operating system's data on this process: memory, CPU time, open files."""
        ProcessCollector(registry=self._registry)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def _labelled(self, metric: Metric, labels: dict[str, str]) -> Counter | Gauge | Histogram:
        made = self._made.get(metric.name)
        if made is None:
            with self._making:
                made = self._made.get(metric.name) or self._make(metric)
                self._made[metric.name] = made
        return made.labels(**labels) if metric.labels else made

    def _make(self, metric: Metric) -> Counter | Gauge | Histogram:
        if metric.kind is MetricKind.COUNTER:
            return Counter(metric.name, metric.sentence, metric.labels, registry=self._registry)
        if metric.kind is MetricKind.GAUGE:
            return Gauge(metric.name, metric.sentence, metric.labels, registry=self._registry)
        return Histogram(metric.name, metric.sentence, metric.labels, buckets=metric.buckets, registry=self._registry)
