"""Reads a table's facts for its services from its log and the stage. Needs no JVM.

Rules:

1. The history is read from the newest commit down, until each service that commits was found, or `_MOST_COMMITS` were
   read: a table that was never maintained is due anyway.
2. A table of several streams is left alone when one of them disables services, and is quiet when it is for all.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from common.ports import Clock, ObjectStore, StoredObject
from common.settings import Settings, Stream
from common.settings.pace import RETRIES_S, longest_flush_after_s
from common.stage.appeared_routes import with_appeared
from common.tables.delta_log import clustering_columns, read_table_state
from common.tables.log_files import COMMIT, LOG, commit_path, newest_checkpoint
from common.tables.state import TableState
from common.tables.stream_history import read_identity
from common.tables.urls import comparable
from delta_loader.maintenance.live_files import live_files
from delta_loader.maintenance.services.due import TableRules
from delta_loader.maintenance.services.facts import (
    LogFacts,
    PartitionTotals,
    Service,
    ServiceRun,
    TableFacts,
    joined_vacuums,
    run_of,
)
from delta_loader.ports import OpenStore, ParallelMap
from delta_loader.stage.reading import Stage, oldest_of_no_stream_ms, oldest_waiting_ms

_MOST_COMMITS = 2_000
_AT_A_TIME = 64
_SHOWN = 5
"""How many runs of each service are kept."""
_LOGGED = frozenset({Service.OPTIMIZE, Service.VACUUM})


def tables_of(settings: Settings) -> tuple[str, ...]:
    """The tables with services enabled, each once."""
    urls: dict[str, str] = {}
    for stream in settings.streams:
        for url in stream.tables:
            if all(settings_of_stream.table_services.enabled for settings_of_stream in _streams_of(settings, url)):
                urls.setdefault(comparable(url), url)
    return tuple(urls.values())


def first_stream_of(settings: Settings, url: str) -> str:
    """The app id of the first stream that has a table: the loader that loads this stream maintains the table."""
    return _streams_of(settings, url)[0].app_id


def rules_of(settings: Settings, url: str) -> TableRules:
    """The settings for one table (rule 2)."""
    streams, wanted = _streams_of(settings, url), settings.table_services
    given = [stream.table_services.quiet_s for stream in streams]
    quiet_s = max(wanted.optimize.quiet_s if quiet_s is None else quiet_s for quiet_s in given) if given else 0.0
    of_rows = [stream for stream in streams if comparable(url) in {comparable(table) for table in stream.row_tables}]
    given_orders = (stream.at(url).table_services.z_order for stream in of_rows)
    z_order = next((columns for columns in given_orders if columns), ())
    flushed_s = longest_flush_after_s(settings) + settings.writer.revoke_timeout_s
    return TableRules(wanted, quiet_s, z_order, flushed_s + RETRIES_S)


def _streams_of(settings: Settings, url: str) -> list[Stream]:
    wanted = comparable(url)
    return [stream for stream in settings.streams if wanted in {comparable(table) for table in stream.tables}]


@dataclass(frozen=True, slots=True)
class FactsReader:
    settings: Settings
    stage: Stage
    open_store: OpenStore
    parallel: ParallelMap
    clock: Clock

    def read(self, url: str, rules: TableRules) -> TableFacts | None:
        store = self.open_store(url)
        state = read_table_state(store)
        if state is None:
            return None
        is_clustered = "clustering" in state.features and bool(clustering_columns(store))
        totals = PartitionTotals(
            rules.small_below_bytes,
            self.clock.wall_ms() - int(rules.quiet_s * 1000),
            {state.names_in_log[name]: name for name in state.partition_by},
        )
        return TableFacts(
            url=url,
            log=_log_facts(store, state),
            partition_by=state.partition_by,
            properties=state.properties,
            is_clustered=is_clustered,
            partitions=totals.add(live_files(store, self.parallel)),
            runs=self._runs(store, state.version),
            waiting_ms=self._waiting_ms(url, state.transactions),
        )

    def _waiting_ms(self, url: str, transactions: Mapping[str, int]) -> int | None:
        settings = with_appeared(self.settings, self.stage.store)
        removed_ms = oldest_of_no_stream_ms(self.stage, settings.streams, url, transactions)
        waits_ms = [] if removed_ms is None else [removed_ms]
        for stream in _streams_of(settings, url):
            store = self.open_store(stream.table)
            state = read_table_state(store)
            identity = read_identity(stream, state, store)
            oldest = oldest_waiting_ms(self.stage, stream, state, identity)
            waits_ms += [] if oldest is None else [oldest]
        return min(waits_ms, default=None)

    def _runs(self, store: ObjectStore, newest: int) -> tuple[ServiceRun, ...]:
        """The last runs, newest first (rule 1)."""
        runs: list[ServiceRun] = []
        for start in range(newest, max(-1, newest - _MOST_COMMITS), -_AT_A_TIME):
            versions = list(range(start, max(-1, start - _AT_A_TIME), -1))
            read = self.parallel(lambda version: store.read(commit_path(version)), versions)
            infos = [(version, _commit_info(data)) for version, data in zip(versions, read, strict=True) if data]
            runs += [run for version, info in infos if (run := run_of(version, info)) is not None]
            met = {run.service for run in runs if run.completed or run.service is not Service.VACUUM}
            if met >= _LOGGED or any(data is None for data in read):
                break
        return _some_of_each(joined_vacuums(runs))


def _some_of_each(runs: Sequence[ServiceRun]) -> tuple[ServiceRun, ...]:
    seen = dict.fromkeys(Service, 0)
    kept: list[ServiceRun] = []
    for run in runs:
        seen[run.service] += 1
        if seen[run.service] <= _SHOWN:
            kept.append(run)
    return tuple(kept)


def _commit_info(data: bytes) -> Mapping[str, object]:
    for line in data.splitlines():
        if line.replace(b" ", b"", 2).startswith(b'{"commitInfo"'):
            return cast("Mapping[str, object]", json.loads(line)["commitInfo"])
    return {}


def _log_facts(store: ObjectStore, state: TableState) -> LogFacts:
    listed = list(store.list(LOG))
    commits: dict[int, StoredObject] = {
        int(match[1]): item for item in listed if (match := COMMIT.fullmatch(item.path)) is not None
    }
    base, _ = newest_checkpoint(store, listed)
    oldest = min(commits, default=state.version)
    return LogFacts(
        version=state.version,
        commits_since_checkpoint=state.version - (-1 if base is None else base),
        commits=len(commits),
        oldest_version=oldest,
        oldest_ms=commits[oldest].modified_ms if oldest in commits else 0,
        size_bytes=sum(item.size_bytes for item in listed),
    )
