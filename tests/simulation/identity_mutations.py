"""What a position belongs to, and what is known of a table that others use: each rule broken on purpose."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from bootstrap.apply import partition_state
from bootstrap.plans import restart
from bootstrap.plans.state import PartitionState
from common.stage.leases import Grant
from common.stage.markers import Marker
from common.tables import identity as table_identity
from common.tables import rollback, stream_history
from common.tables.identity import TableIdentity
from common.tables.transactions import TxnIds
from common.tables.urls import comparable
from delta_loader.load import rollback as detection
from delta_loader.load.rollback import RollbackDetector
from delta_loader.plan import plan
from delta_loader.stage import identity, reading
from delta_loader.stage.identity import StreamIdentity
from delta_loader.tables import commits
from delta_loader.tables.commits import Target
from tests.simulation.editing import CALLED, MOVED, RENAMED, TENDED
from tests.simulation.mutation import Mutation, changed, wrapped
from tests.simulation.worlds import Worlds


def _is_of_others(self: RollbackDetector, target: Target, version: int) -> bool:
    """Only for a loader that has not read the table before."""
    for commit in self._tables.history(target.url, target.version):
        if commit.version <= version:
            return commit.version == version
        if commit.metadata is not None and commit.metadata.app_id == self._app_id:
            return False
    return False


def _for_tables(marker: Marker, tables: Mapping[str, str]) -> plan.AnyMarker:
    known = {comparable(url) for url in tables.values()}
    if marker.manifest is None:
        return marker
    kept = tuple(table for table in marker.tables if comparable(table.url) in known)
    return replace(marker, manifest=replace(marker.manifest, tables=kept))


def _at_kafkas_first_record(
    real: Callable[..., restart.Restart], state: PartitionState, *why: object, give_up: bool
) -> restart.Restart:
    """Also where the table has records under another app_id."""
    return real(replace(state, elsewhere=None), *why, give_up=give_up)


def _without_doubts(real: Callable[..., object], *given: object, **named: object) -> object:
    return real(*given, **{**named, "unproved": frozenset()})


_any_app_id = changed(StreamIdentity, "_other_stream", lambda *_: None)
_any_topic_id = changed(identity, "_differ", lambda *_: False)
_unchecked = changed(StreamIdentity, "judged", lambda _self, _source, markers: list(markers))
_skipped = changed(plan, "_foreign", lambda *_: None)
_named_by_the_config = changed(TxnIds, "is_plain", lambda self, _topic: not self.several_topics)
# As if a bound of twenty commits answered "no rollback".
_recent_only = (
    changed(rollback, "FARTHEST", 20),
    changed(table_identity, "FARTHEST", 20),
    changed(stream_history, "unknown_since", lambda *_: None),
)
_unknown_is_good = changed(detection, "unknown_positions", lambda *_arguments, **_named: None)
_always_new = changed(rollback.OwnHistory, "may_have_loaded", lambda *_: False)
_restored_by_others = changed(RollbackDetector, "_is_of_others", _is_of_others)
_any_topics = changed(Grant, "has", lambda self, app_id, _topics=None: self.streams is None or app_id in self.streams)
_before_an_edit = changed(reading, "for_tables", _for_tables)
_begins_early = wrapped(restart, "_separate_chain", _at_kafkas_first_record)
_undetected = changed(TableIdentity, "in_its_place", lambda *_arguments, **_named: None)
_only_moved = changed(TableIdentity, "with_chains", lambda _self, moved: dict(moved))
_undoubted = wrapped(commits, "CommitMetadata", _without_doubts)
RULES = (
    Mutation("a marker belongs to its app_id", _any_app_id, CALLED, Worlds.EDITED),
    Mutation("a marker belongs to its topic", _any_topic_id, MOVED, Worlds.EDITED),
    Mutation("the stream of a marker is checked", _unchecked, worlds=Worlds.EDITED),
    Mutation("a RESTORE is found at any depth of the log", _recent_only, TENDED, Worlds.EDITED),
    Mutation("a chain counts as new only when proved", _always_new, TENDED, Worlds.EDITED),
    Mutation("a RESTORE since the last pass is found", _restored_by_others, TENDED, Worlds.EDITED),
    Mutation("a lease names topics", _any_topics, worlds=Worlds.EDITED),
    Mutation("a new chain begins after the loaded records", _begins_early, CALLED, Worlds.EDITED),
    Mutation(
        "chains with a common Kafka partition are loaded one by one",
        changed(plan, "_apart", dict),
        worlds=Worlds.REGROUPED,
    ),
    Mutation(
        "a joined chain begins after the loaded records",
        changed(partition_state, "_loaded_inputs", lambda *_: ({}, None)),
        worlds=Worlds.REGROUPED,
    ),
    Mutation("a table has one of several joined chains", _undetected, worlds=Worlds.REGROUPED),
)
RARE = (
    Mutation("files of another table are not skipped", _before_an_edit, worlds=Worlds.EDITED),
    Mutation("a marker of another topic is never covered", _skipped, MOVED, Worlds.EDITED),
    Mutation("the first commit determines the names of txn actions", _named_by_the_config, RENAMED, Worlds.EDITED),
    Mutation("a forgotten history is not assumed", _unknown_is_good, TENDED, Worlds.EDITED),
    Mutation("another topic's txn action is detected", _undetected, RENAMED, Worlds.EDITED),
    Mutation("each commit names all chains", _only_moved, TENDED, Worlds.EDITED),
    Mutation("a doubt stays until it is resolved", _undoubted, TENDED, Worlds.EDITED),
    Mutation(
        # The new chain mostly sends them again before its restart.
        "a chain in place of another waits for its unsent records",
        changed(partition_state, "_has_outboxes", lambda *_: False),
        worlds=Worlds.REGROUPED,
    ),
)
