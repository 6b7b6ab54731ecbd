"""``stage-writer``: the command line."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from threading import Timer
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from structlog import get_logger, make_filtering_bound_logger, wrap_logger

from common import cli
from common.clock import SystemClock
from common.errors import ConfigError, ExitCode, KafkaDeltaExpressError, UsageError
from common.http.server import HttpServer
from common.kafka.rights import Right, require_topic
from common.logs import set_up_logs
from common.metrics import Metrics
from common.pause_commands import add_pause_commands
from common.remedies import CONFIG
from common.settings import Native, Settings, Stream
from common.settings.overlap import TopicReaders
from common.settings.pace import longest_replay_s, writer_of
from common.settings.stores import stage_store, table_stores
from common.sizes import counted
from common.spans import Position, Topic, TopicPartition
from common.stage.merged import kafka_topic, topics_of
from common.stage.paused import StreamPart
from common.stage.topic_owners import StageTopicOwners
from common.stage.versions import latest
from common.terminal import progress
from stage_writer.chains import StagedChains
from stage_writer.checked_topics import require_written, starts_exist, topic_lines, topics_continue
from stage_writer.columns.following import PendingConverter
from stage_writer.columns.wiring import ColumnsOfStreams
from stage_writer.convert_by_table import RecordConverter
from stage_writer.converters import ConverterParts, converters_of, plain_converter, with_topologies
from stage_writer.fetch.rights import require_rights
from stage_writer.fetch.schema_registry import schemas_of
from stage_writer.loop import StageWriter
from stage_writer.native.library import REMEDY, find_reader, library_path
from stage_writer.replay.dead_letters import DeadLetterExport, inconvertible_of
from stage_writer.replay.records import (
    Range,
    Records,
    Replay,
    Replayed,
    ReplayKafka,
    chains_of_dead_letters,
    replay_selection,
    replayable,
    require_first_chain,
    require_same_topic,
    spans_of,
)
from stage_writer.replay.records import to_json as replayed_to_json
from stage_writer.replay.records import to_text as replayed_to_text
from stage_writer.sample import Sampler
from stage_writer.stage.table_compatibility import TableCompatibility, prove_stage_folders, prove_tables
from stage_writer.stopping import StartingExit, end_when_stuck
from stage_writer.wiring import open_stage, source_of, wired_writer
from stage_writer.worker_pool import WorkerPool, WorkerSlot, report_port, settings_of, stop_without_parent, workers_of

if TYPE_CHECKING:
    from stage_writer.converters import AnyConverter

app = cli.new_app(
    "Stage records from Kafka as Parquet files and done markers.",
    "stage-writer check pipeline.yaml",
    "stage-writer run pipeline.yaml",
    "stage-writer run pipeline.yaml --until-caught-up",
)


@app.command(epilog=cli.examples("stage-writer run pipeline.yaml", "stage-writer run pipeline.yaml --until-caught-up"))
def run(
    config: cli.ConfigArgument,
    until_caught_up: Annotated[  # noqa: FBT002 - an option
        bool, typer.Option("--until-caught-up", help="Stage everything that is in Kafka now, and exit.")
    ] = False,
    print_config: cli.PrintConfigOption = False,  # noqa: FBT002
    worker: Annotated[str | None, typer.Option("--worker", hidden=True, help="The parent's word to a worker.")] = None,
) -> None:
    """Stage records from Kafka until stopped. SIGTERM flushes and leaves the group; a second one stops at once."""
    settings = cli.settings_from(config, print_config=print_config)
    count = workers_of(settings)
    if worker is None and count > 1:
        _run_worker_pool(settings, config, count, until_caught_up=until_caught_up)
        return
    slot = None if worker is None else WorkerSlot.parse(worker)
    settings = settings if slot is None else settings_of(settings, slot)
    starting = StartingExit(ExitCode.FAILED if until_caught_up else ExitCode.DONE)
    with starting.instead_of_errors():
        _write(settings, slot, starting, until_caught_up=until_caught_up)


def _run_worker_pool(settings: Settings, config: Path, count: int, *, until_caught_up: bool) -> None:
    """Several processes (stage_writer/worker_pool.py)."""
    from stage_writer.web.worker_pool_pages import worker_pool_routes  # noqa: PLC0415 - only the parent of workers has them

    settings_of(settings, WorkerSlot(0, count))  # report what cannot work once, not per worker
    log = set_up_logs(settings.logs, "stage-writer")
    command = [*cli.stage_writer_command(), "run", str(config)]
    pool = WorkerPool([*command, *(["--until-caught-up"] if until_caught_up else [])], count, log, until_caught_up)
    routes = worker_pool_routes(
        pool, settings.writer.http_token, SystemClock(), reads_state=settings.writer.state_queries
    )
    address, hosts = settings.writer.http, settings.writer.http_hosts
    server = None if address is None else HttpServer(address, routes, hosts)
    if server is not None:
        log.info("serving", port=server.port)
    try:
        pool.start()
        pool.run()
    finally:
        if server is not None:
            server.close()
    log.info("ended")


def _write(settings: Settings, slot: WorkerSlot | None, starting: StartingExit, *, until_caught_up: bool) -> None:
    _stop_on_signals(starting.ask)
    log = set_up_logs(settings.logs, "stage-writer")
    log = log if slot is None else log.bind(worker=slot.index)
    writer = wired_writer(settings, SystemClock(), log, Metrics())

    timers: list[Timer] = []

    def stop() -> None:
        writer.service.stop()
        timers.append(end_when_stuck(settings.writer.revoke_timeout_s, lambda: writer.stopping.is_stepping, log))

    if slot is not None:
        stop_without_parent(stop)
        if writer.serving.port is not None:
            report_port(writer.serving.port)
    starting.end_if_asked()
    _stop_on_signals(stop)
    try:
        writer.service.run(until_caught_up=until_caught_up)
    finally:
        late = writer.close(settings.writer.revoke_timeout_s)
        for timer in timers:  # a waiting timer holds the converters, and DuckDB prints leaked objects at the end
            timer.cancel()
            timer.join()
    log.info("ended")
    if until_caught_up:
        _require_all(late, writer.service)


def _require_all(late: KafkaDeltaExpressError | None, service: StageWriter) -> None:
    if late is not None:
        raise late
    if service.snapshot().telemetry.alarms.raised:
        raise typer.Exit(ExitCode.HELD)


@app.command(epilog=cli.examples("stage-writer check pipeline.yaml", "stage-writer check pipeline.yaml --json"))
def check(config: cli.ConfigArgument, *, as_json: cli.JsonOption = False) -> None:
    """Check the config, Kafka, the store and the tables, and decode a sample of each topic."""
    settings = cli.settings_from(config)
    set_up_logs(settings.logs, "stage-writer")
    checks: list[tuple[str, str]] = []

    def report(what: str, text: str) -> None:
        checks.append((what, text))
        if not as_json:
            cli.echo(f"{what:<8} {text}")

    columns = ColumnsOfStreams(settings, SystemClock())
    try:
        as_written, settings = settings, columns.previewed()
        converters = converters_of(settings, preview=True)
        report("config", f"ok: {counted(len(converters), 'stream')}")
        for text in columns.lines(settings):
            report("columns", text)
        for converter in with_topologies(converters):
            report("topology", f"ok: {converter.stream.app_id}\n{converter.topology.describe()}")
        report("native", _native_text(settings))
        owners = StageTopicOwners(settings, open_stage(settings), make=False)
        owners.read_all()
        report("store", f"ok: {settings.stage.url} refuses a second exclusive create")
        prove_stage_folders(as_written, table_stores(settings))
        count = prove_tables(settings, table_stores(settings))
        report("tables", f"ok: the folders of {counted(count, 'table')} can be written to")
        _require_compatible(settings, converters)
        schemas = schemas_of(settings)
        if schemas is not None:
            schemas.check()
            report("schemas", f"ok: {settings.schema_registry['url']} answers")
        ends, ids = _ends(settings, owners)
        for text in topic_lines(settings, ends):
            report("kafka", text)
        can_be_read = [topics_continue(settings, ends, ids, report), starts_exist(settings, ends, report)]
        well = _try_records(settings, converters, ends, report) and all(can_be_read)
        _check_topics_of_ours(settings, report)
    except KafkaDeltaExpressError as error:
        if as_json:
            cli.echo(_checks_as_json(checks, ready=False, failure={"problem": error.problem, "remedy": error.remedy}))
        raise
    verdict = "all well" if well else "not healthy: too many records would be dead letters, or a partition is held"
    cli.echo(_checks_as_json(checks, ready=well) if as_json else verdict)
    if not well:
        raise typer.Exit(ExitCode.HELD)


def _checks_as_json(checks: Iterable[tuple[str, str]], *, ready: bool, failure: Mapping[str, str] | None = None) -> str:
    """The checks that were made, and the error that ended them."""
    made = [{"check": what, "text": text} for what, text in checks]
    return json.dumps({"fit": ready, "checks": made, "failure": failure}, indent=2)


def _require_compatible(settings: Settings, converters: Sequence[AnyConverter]) -> None:
    """Raises ConfigError for rows that their table, as it is now, can never accept."""
    tables = TableCompatibility(table_stores(settings), SystemClock(), get_logger())
    conflicts = [
        (f"{converter.stream.app_id}: {conflict.problem}", conflict.remedy)
        for converter in converters
        for table in (converter.all_formats if isinstance(converter, RecordConverter) else converter.formats)
        if (conflict := tables.find([table])) is not None
    ]
    if len(conflicts) == 1:
        raise ConfigError(*conflicts[0])
    if conflicts:
        lines = [f"{len(conflicts)} tables cannot take their rows:", *(" → ".join(each) for each in conflicts)]
        raise ConfigError("\n  ".join(lines), "follow the remedy of each, and check again")


def _check_topics_of_ours(settings: Settings, report: Callable[[str, str], None]) -> None:
    if settings.loader.control_topic is not None:
        require_topic(settings.kafka, "loader.control_topic", settings.loader.control_topic, Right.WRITE)
        report("control", f"ok: {settings.loader.control_topic} exists and can be written to")
    if any(stream.state_changelog is not None for stream in settings.streams):
        from stage_writer.changelog.wiring import checked_changelogs  # noqa: PLC0415 - only with topologies

        for text in checked_changelogs(settings):
            report("changes", text)


def _native_text(settings: Settings) -> str:
    """The reader in use, as text. Raises ConfigError where the native reader is required and missing."""
    reader = find_reader(settings.writer.native)
    if reader.problem is not None:
        return f"none: {reader.problem}; the writer works without it, at many times the cost; {REMEDY}"
    return f"{'off' if settings.writer.native is Native.OFF else f'ok: the C reader, {library_path()}'}"


@app.command(
    epilog=cli.examples(
        "stage-writer replay pipeline.yaml --topic orders --since 2026-03-01T00:00:00Z --until 2026-03-02T00:00:00Z",
        "stage-writer replay pipeline.yaml --topic orders --partition 0 --from 1200 --to 1300 --yes",
    )
)
def replay(
    *,
    config: cli.ConfigArgument,
    topic: Annotated[str | None, typer.Option("--topic", help="The Kafka topic.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Only this Kafka partition.")] = None,
    start: Annotated[int | None, typer.Option("--from", metavar="OFFSET", min=0, help="The first offset.")] = None,
    end: Annotated[int | None, typer.Option("--to", metavar="OFFSET", min=1, help="The offset after the last.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="From: 2026-03-01T00:00:00Z")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before: 2026-03-02T00:00:00Z")] = None,
    export: Annotated[
        Path | None, typer.Option("--letters", metavar="FILE", help="Use the dead letters of this export (Parquet).")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the plan; without --yes it is only shown.")] = False,
    as_json: cli.JsonOption = False,
) -> None:
    """Decode a range of offsets or times from Kafka again, and have the loader replace its rows."""
    settings = cli.settings_from(config)
    set_up_logs(settings.logs, "stage-writer")
    if export is not None:
        if (topic, partition, start, end, since, until) != (None,) * 6:
            msg = "--letters and a range cannot be combined: each selects the records"
            raise UsageError(
                msg,
                f"give one of them; `delta-loader dead-letters export {CONFIG} letters.parquet --format "
                "parquet` selects dead letters",
            )
        _replay_dead_letters(
            settings, DeadLetterExport.read(export, settings.writer.consume_records), yes=yes, as_json=as_json
        )
        return
    if topic is None:
        raise UsageError("--topic is missing", "name the topic whose records are to be loaded again")
    selection = replay_selection(start, end, since, until)
    StageTopicOwners(settings, stage_store(settings), make=False).read_all()
    stream = replayable(settings, topic)
    converter = _converter_now(settings, stream, yes=yes)
    kafka = ReplayKafka(settings, with_headers=converter.needs_headers)
    try:
        spans = spans_of(kafka, topic, partition, selection)
        _require_same_topic(settings, kafka, [topic_partition for topic_partition, _ in spans])
        replayed = _replayed(settings, converter, kafka, [Range(*span) for span in spans], yes=yes)
    finally:
        kafka.close()
    cli.echo(replayed_to_json(replayed, done=yes) if as_json else replayed_to_text(stream, replayed, done=yes))


def _replay_dead_letters(settings: Settings, dead_letters: DeadLetterExport, *, yes: bool, as_json: bool) -> None:
    """Replay dead letters from their own bytes, stream by stream and topic by topic."""
    StageTopicOwners(settings, stage_store(settings), make=False).read_all()
    by_stream = dead_letters.by_stream()
    try:
        parts = [
            (replayable(settings, chain), chain, part)
            for app_id, part in by_stream.items()
            for chain in chains_of_dead_letters(settings, app_id, part.topics())
        ]
    except UsageError as error:
        if len(by_stream) == 1:
            raise
        others = f"for the other streams, run `delta-loader dead-letters replay {CONFIG}` with the --stream of each"
        raise UsageError(error.problem, f"{error.remedy}; {others}") from None
    everything: list[Replayed] = []
    for stream, chain, part in parts:
        converter = _converter_now(settings, stream, yes=yes)
        if converter.needs_headers:
            msg = f"the stream {stream.app_id!r} uses the records' headers, which dead letters do not keep"
            first = part.ranges(chain)[0]
            where = f"--topic {chain} --partition {first.partition.partition}"
            span = f"--from {first.span.start} --to {first.span.end}"
            raise UsageError(msg, f"replay the range from Kafka: stage-writer replay {CONFIG} {where} {span}")
        replayed = _replayed(settings, converter, part, part.ranges(chain), yes=False)
        fitting = part.without_inconvertible(replayed)
        requests = fitting.requests(chain)  # checked where none are replayed, too: reports too many before --yes
        if yes:
            replayed = [*_replayed(settings, converter, fitting, requests, yes=True), *inconvertible_of(replayed)]
        everything += replayed
        if not as_json:
            cli.echo(replayed_to_text(stream, replayed, done=yes))
    if as_json:
        cli.echo(replayed_to_json(everything, done=yes))


def _converter_now(settings: Settings, stream: Stream, *, yes: bool) -> RecordConverter:
    """A stream's converter, including the columns that the stream has gained; ``yes``: tables appear in the stage."""
    columns = ColumnsOfStreams(settings, SystemClock())
    settings = columns.required(stream.app_id)
    stream = next(current for current in settings.streams if current.app_id == stream.app_id)
    reader = find_reader(settings.writer.native)
    passes = ConverterParts(reader.make, reader.make_avro, columns.read_file)
    converter = plain_converter(settings, passes, stream, preview=not yes)
    store = stage_store(settings)
    by_route = stream.gains_by_table
    gained = latest(store, stream.app_id, by_route=by_route) if stream.record.evolves else None
    return converter if gained is None else converter.at(gained.columns)


def _replayed(
    settings: Settings, converter: RecordConverter, records: Records, ranges: Sequence[Range], *, yes: bool
) -> list[Replayed]:
    chains = StagedChains(stage_store(settings))
    for part in ranges:
        require_first_chain(part.partition, chains.origin(part.partition))
    work = Replay(
        converter,
        records,
        open_stage(settings) if yes else stage_store(settings),
        SystemClock(),
        lambda: uuid.uuid4().hex,
        writer=f"{socket.gethostname()}-{os.getpid()}",
        file_bytes=writer_of(settings.writer, converter.stream).flush_bytes,
        longest_s=longest_replay_s(settings),
    )
    with progress("positions", sum(part.positions for part in ranges)) as advance:
        return [_one(work.stage if yes else work.count, part, advance) for part in ranges]


def _one(carry_out: Callable[[Range], Replayed], part: Range, advance: Callable[[int], None]) -> Replayed:
    replayed = carry_out(part)
    advance(part.positions)
    return replayed


def _require_same_topic(settings: Settings, kafka: ReplayKafka, partitions: list[TopicPartition]) -> None:
    """Refuse to replay a topic with a different id from the one the chains were made of."""
    chains = StagedChains(stage_store(settings))
    ids = kafka.topic_ids({kafka_topic(partition.topic) for partition in partitions})
    for partition in partitions:
        tail, topic_id = chains.tail(partition), ids.get(kafka_topic(partition.topic))
        require_same_topic(partition, None if tail is None else tail.lineage.topic_id, topic_id)


def _try_records(
    settings: Settings,
    converters: Sequence[AnyConverter],
    partitions: Collection[TopicPartition],
    report: Callable[[str, str], None],
) -> bool:
    """Print the outcome of each stream's newest records; False if some need an operator."""
    well, alarm = True, settings.writer.dead_letter_alarm
    partitions_of = TopicReaders([converter.stream for converter in converters]).partitions_of_each(partitions)
    for converter in converters:
        if isinstance(converter, PendingConverter):
            continue  # nothing to try: its topics have no records
        with closing(Sampler(settings)) as sampler:
            sample = sampler.sample(converter, partitions_of[converter.stream.app_id])
        report("sample", "\n".join(sample.lines(alarm)))
        has_state = not isinstance(converter, RecordConverter) and converter.topology.has_state
        well = well and (has_state or sample.is_well(alarm))
    return well


def _ends(
    settings: Settings, owners: StageTopicOwners
) -> tuple[Mapping[TopicPartition, Position], Mapping[Topic, str | None]]:
    """The ends of the partitions of the streams, and their topics' ids. Raises for a topic that may not be read."""
    silent = wrap_logger(None, wrapper_class=make_filtering_bound_logger(logging.CRITICAL))  # the error says it all
    converters = converters_of(settings, preview=True)
    source = source_of(settings, converters, SystemClock(), silent, owners=owners)
    try:
        ends = source.metadata.end_positions(settings.streams)
        ids = source.metadata.topic_ids({partition.topic for partition in ends})
        require_written(settings, converters)
    finally:
        source.close()
    require_rights(settings, {topic for partition in ends for topic in topics_of(partition.topic)})
    return ends, ids


def _stop_on_signals(stop: Callable[[], None]) -> None:
    def first(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
        signal.signal(signal.SIGINT, lambda *_: os._exit(1))
        stop()

    signal.signal(signal.SIGTERM, first)
    signal.signal(signal.SIGINT, first)


add_pause_commands(app, StreamPart.STAGING)


def main() -> None:
    cli.end_process(cli.run(app))


if __name__ == "__main__":
    main()
