"""The commands that only read: ``check``, ``status``, ``verify`` and ``explain``.

``check`` looks at everything that loading needs, before it is needed, and starts Spark; ``verify`` needs Spark too. The
others need no Spark, and none needs a running loader.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from typing import Annotated

import typer

from common.cli import ConfigArgument, JsonOption, PrintConfigOption, echo, settings_from
from common.errors import ExitCode, KafkaDeltaExpressError, StoreError, UsageError
from common.logs import set_up_logs
from common.settings import Settings, Stream
from common.settings.overlap import may_share
from common.settings.stores import stage_store, table_stores
from common.spans import Offset, Partition, Topic, TopicPartition
from common.stage.merged import kafka_topic
from common.stage.topic_owners import StageTopicOwners
from common.terminal import progress
from delta_loader.check_result import Check, Level, checks_as_json, checks_as_text, exit_code
from delta_loader.checks.abandoned_topics import abandoned_topics
from delta_loader.checks.preflight import failed
from delta_loader.checks.requirements import shared_topic_checks
from delta_loader.commands.parts import parallel_requests, preflight_of, stage_of, table_named, tables_of
from delta_loader.inspect.explain.reading import Explainer
from delta_loader.inspect.explain.view import offset_to_json, offset_to_text, version_to_json, version_to_text
from delta_loader.inspect.verify import view as verification
from delta_loader.inspect.verify.verify import chosen, verifier_of
from delta_loader.lease.holder import lease_status
from delta_loader.stage.reading import Stage
from delta_loader.status import values
from delta_loader.status.collecting import stream_status
from delta_loader.status.kafka import BrokerEnds


def check(config: ConfigArgument, *, as_json: JsonOption = False) -> None:
    """Check everything that loading needs: the stage, Spark, the log store, rights, tables, catalogs, Kafka.

    Exit code 1 if something is unavailable, 2 for a wrong setting or right, 3 if a table is not compatible.
    """
    settings = settings_from(config)
    set_up_logs(settings.logs, "delta-loader")
    with ExitStack() as stack:
        parallel = stack.enter_context(parallel_requests())
        checks = [*preflight_of(settings, parallel).checks(), *_spark_checks(settings, stack)]
    echo(json.dumps(checks_as_json(checks), indent=2) if as_json else checks_as_text(checks))
    raise typer.Exit(exit_code(checks))


def _spark_checks(settings: Settings, stack: ExitStack) -> Iterator[Check]:
    """Whether Spark starts, and Delta's log store refuses to overwrite a commit."""
    # Spark is needed only to load, and for nothing else when this command line starts.
    from delta_loader.spark.log_store import prove_log_stores  # noqa: PLC0415
    from delta_loader.spark.session import build_session  # noqa: PLC0415
    from delta_loader.wiring import catalog_checks  # noqa: PLC0415

    try:
        spark = build_session(settings)
        stack.callback(spark.stop)
        yield Check("spark", Level.OK, f"version {spark.version} starts with its jars")
        prove_log_stores(spark, tables_of(settings), table_stores(settings))
        yield Check("log", Level.OK, "two loaders cannot write the same commit")
        yield from catalog_checks(settings, spark)
    except KafkaDeltaExpressError as error:
        yield failed("spark", error)


def status(config: ConfigArgument, *, as_json: JsonOption = False, print_config: PrintConfigOption = False) -> None:
    """Show per stream and Kafka partition: staged to, loaded to, lag, held and why. Exit code 3 if something is held.

    Exit code 1 if a stream's last load failed or its state cannot be read.
    """
    settings = settings_from(config, print_config=print_config)
    with parallel_requests() as parallel:
        stage = stage_of(settings, parallel)
        ends, opener = BrokerEnds(settings), table_stores(settings)
        left: list[Check] = []
        reports = cache(stage.held_by_writers)  # once for all streams
        with suppress(KafkaDeltaExpressError):  # unavailable dependencies are reported for each stream
            left += abandoned_topics(stage, settings.streams, opener)
        with suppress(KafkaDeltaExpressError):
            topics = {kafka_topic(partition.topic) for stream in settings.streams for partition in ends(stream) or ()}
            left += shared_topic_checks(settings.streams, topics)
        streams = [
            stream_status(
                stream,
                stage,
                opener,
                ends,
                ends.topic_ids,
                ends_now=ends.now,
                firsts=ends.firsts,
                left=[check for check in left if check.app_id == stream.app_id],
                reports=reports,
            )
            for stream in settings.streams
        ]
        lease = lease_status(stage.store)
    text = json.dumps(values.to_json(streams, lease), indent=2) if as_json else values.to_text(streams, lease)
    echo(text.rstrip("\n"))
    raise typer.Exit(values.exit_code(streams))


def _learn_owners(settings: Settings) -> None:
    """Know whose chains are whose. Rights on the stage are needed only where streams may share a topic."""
    try:
        StageTopicOwners(settings, stage_store(settings), make=False).read_all()
    except StoreError as error:
        if may_share(settings.streams):
            raise
        echo(f"the stage was not read, so no topic is taken as shared between streams: {error.problem}", err=True)


def verify(
    config: ConfigArgument,
    *,
    stream: Annotated[str | None, typer.Option("--stream", metavar="APP_ID", help="Only this stream.")] = None,
    kafka: Annotated[bool, typer.Option("--kafka", help="Compare with every record that Kafka has.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Prove from the tables that each record is there once and none is missing. Exit code 3 for a fault."""
    settings = settings_from(config)
    _learn_owners(settings)
    streams = chosen(settings, stream)
    with ExitStack() as stack:
        parallel = stack.enter_context(parallel_requests())
        verifier = verifier_of(settings, stack, table_stores(settings), parallel, with_kafka=kafka)
        advance = stack.enter_context(progress("partitions"))
        reports = [replace(verifier, advance=advance).verify(stream) for stream in streams]
    echo(json.dumps(verification.to_json(reports), indent=2) if as_json else verification.to_text(reports))
    codes = [ExitCode.FAILED for report in reports if report.failure is not None]
    codes += [ExitCode.HELD for report in reports if report.faults]
    raise typer.Exit(ExitCode.most_significant(codes))


_ASK = "use --version N, or --topic T --partition P --offset O"


def explain(
    config: ConfigArgument,
    *,
    version: Annotated[int | None, typer.Option("--version", min=0, help="The table version to explain.")] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="URL", help="The table of --version.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="The topic of --offset.")] = None,
    partition: Annotated[int, typer.Option("--partition", min=0, help="The Kafka partition of --offset.")] = 0,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="The Kafka offset to locate.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a table version loaded (spans, files, counts), or which version and file contain a Kafka offset."""
    settings = settings_from(config)
    with parallel_requests() as parallel:
        store = stage_store(settings)
        StageTopicOwners(settings, store, make=False).read_all()
        stage = Stage(store, parallel)
        explainer = Explainer(stage, table_stores(settings), parallel, BrokerEnds(settings))
        if version is not None and topic is None and offset is None:
            version_story = explainer.version(_table(settings, table), version)
            echo(json.dumps(version_to_json(version_story), indent=2) if as_json else version_to_text(version_story))
        elif version is None and table is None and topic is not None and offset is not None:
            topic_partition = TopicPartition(Topic(topic), Partition(partition))
            story = explainer.offset(_stream(settings, topic), topic_partition, Offset(offset))
            echo(json.dumps(offset_to_json(story), indent=2) if as_json else offset_to_text(story))
        else:
            raise UsageError("explain answers one question: about a version, or about an offset", _ASK)


def _table(settings: Settings, url: str | None) -> str:
    tables = tables_of(settings)
    if url is None:
        if len(settings.streams) == 1:
            return settings.streams[0].table
        msg = "the config has several streams, and --table does not say which table is meant"
        raise UsageError(msg, f"use one of {', '.join(dict.fromkeys(tables))}")
    return table_named(settings, url, tables)


def _stream(settings: Settings, topic: str) -> Stream:
    stream = settings.stream_of(topic)
    if stream is None:
        named = ", ".join(chain.chain_of(name) for chain in settings.streams for name in chain.topics)
        raise UsageError(f"no stream of this config reads the topic {topic!r}", f"the streams read {named}")
    return stream
