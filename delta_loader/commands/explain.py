"""``delta-loader explain``: what a table version loaded, and where a Kafka offset is. Needs no Spark."""

import json
from typing import Annotated

import typer

from common.cli import ConfigArgument, JsonOption, echo, settings_from
from common.errors import UsageError
from common.settings import Settings, Stream
from common.settings.stores import stage_store, table_stores
from common.spans import Offset, Partition, Topic, TopicPartition
from common.stage.topic_owners import StageTopicOwners
from delta_loader.commands.parts import parallel_requests, table_named, tables_of
from delta_loader.inspect.explain.reading import Explainer
from delta_loader.inspect.explain.view import offset_to_json, offset_to_text, version_to_json, version_to_text
from delta_loader.stage.reading import Stage
from delta_loader.status.kafka import BrokerEnds

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
    table_url = table_named(settings, url, tables)
    if table_url is None:
        msg = f"--table {url} is not a table of this config"
        raise UsageError(msg, f"use one of {', '.join(dict.fromkeys(tables))}")
    return table_url


def _stream(settings: Settings, topic: str) -> Stream:
    stream = settings.stream_of(topic)
    if stream is None:
        named = ", ".join(chain.chain_of(name) for chain in settings.streams for name in chain.topics)
        raise UsageError(f"no stream of this config reads the topic {topic!r}", f"the streams read {named}")
    return stream
