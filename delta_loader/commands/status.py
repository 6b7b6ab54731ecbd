"""``delta-loader status``: how far each partition is. Needs no Spark and no running loader."""

import json
from contextlib import suppress
from functools import cache

import typer

from common.cli import ConfigArgument, JsonOption, PrintConfigOption, echo, settings_from
from common.errors import KafkaDeltaExpressError
from common.settings.stores import table_stores
from common.stage.merged import kafka_topic
from delta_loader.check_result import Check
from delta_loader.checks.abandoned_topics import abandoned_topics
from delta_loader.checks.requirements import shared_topic_checks
from delta_loader.commands.parts import parallel_requests, stage_of
from delta_loader.lease.holder import lease_status
from delta_loader.status.collecting import stream_status
from delta_loader.status.kafka import BrokerEnds
from delta_loader.status.values import exit_code, to_json, to_text


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
    echo(json.dumps(to_json(streams, lease), indent=2) if as_json else to_text(streams, lease).rstrip("\n"))
    raise typer.Exit(exit_code(streams))
