"""What a position belongs to, and what is known of a table that others use: each rule broken on purpose."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

from bootstrap.plans import restart
from bootstrap.plans.state import PartitionState
from common.stage.leases import Grant
from common.stage.markers import Marker
from common.tables import identity as table_identity
from common.tables import rollback, stream_history
from common.tables.commit_metadata import CommitMetadata
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


def markers_of_another_stream_are_loaded() -> AbstractContextManager[object]:
    """The app_id of a marker is ignored."""
    return patch.object(StreamIdentity, "_other_stream", lambda *_: None)


def topic_ids_are_not_compared() -> AbstractContextManager[object]:
    """The broker's topic id is ignored, too."""
    return patch.object(identity, "_differ", lambda *_: False)


def marker_identity_is_not_checked() -> AbstractContextManager[object]:
    """No part of a marker's identity is checked."""
    return patch.object(StreamIdentity, "judged", lambda _self, _source, markers: list(markers))


def markers_below_the_position_are_skipped() -> AbstractContextManager[object]:
    """A marker of another topic below the position counts as loaded."""
    return patch.object(plan, "_foreign", lambda *_: None)


def the_config_names_the_txn_actions() -> AbstractContextManager[object]:
    """The config, and not the table's first commit, decides whether txn actions name the topic."""
    return patch.object(TxnIds, "is_plain", lambda self, _topic: not self.several_topics)


@contextmanager
def only_recent_commits_are_searched() -> Iterator[None]:
    """As if a bound of twenty commits answered "no rollback"."""
    with ExitStack() as stack:
        for module in (rollback, table_identity):
            stack.enter_context(patch.object(module, "FARTHEST", 20))
        stack.enter_context(patch.object(stream_history, "unknown_since", lambda *_: None))
        yield


def an_unknown_history_counts_as_good() -> AbstractContextManager[object]:
    """A log that begins after the last load counts as one without a rollback."""
    return patch.object(detection, "unknown_positions", lambda *_: None)


def a_chain_without_a_position_is_new() -> AbstractContextManager[object]:
    """Also where the log has forgotten commits."""
    return patch.object(rollback.OwnPast, "may_have_loaded", lambda *_: False)


def a_restore_by_others_is_ignored() -> AbstractContextManager[object]:
    """A loader that has read the table before ignores it."""

    def is_of_others(self: RollbackDetector, target: Target, version: int) -> bool:
        for commit in self._tables.history(target.url, target.version or 0):
            if commit.version <= version:
                return commit.version == version
            if commit.metadata is not None and commit.metadata.app_id == self._app_id:
                return False
        return False

    return patch.object(RollbackDetector, "_is_of_others", is_of_others)


def a_lease_covers_only_the_app_id() -> AbstractContextManager[object]:
    """Its holder may read any topics."""
    return patch.object(Grant, "has", lambda self, app_id, _topics=None: self.streams is None or app_id in self.streams)


def files_of_other_tables_are_skipped() -> AbstractContextManager[object]:
    """Of a marker that was staged for a table from before an edit."""

    def for_tables(marker: Marker, tables: Mapping[str, str]) -> plan.AnyMarker:
        known = {comparable(url) for url in tables.values()}
        if marker.manifest is None:
            return marker
        kept = tuple(table for table in marker.tables if comparable(table.url) in known)
        return replace(marker, manifest=replace(marker.manifest, tables=kept))

    return patch.object(reading, "for_tables", for_tables)


def a_new_chain_begins_at_kafkas_first_record() -> AbstractContextManager[object]:
    """Also where the table has records under another app_id."""
    real = restart._separate_chain

    def separate(state: PartitionState, why: str, position: None, *, give_up: bool) -> restart.Restart:
        return real(replace(state, elsewhere=None), why, position, give_up=give_up)

    return patch.object(restart, "_separate_chain", separate)


def unnamed_txn_actions_are_not_detected() -> AbstractContextManager[object]:
    """Another topic's txn action is taken for the stream's own."""
    return patch.object(TableIdentity, "in_its_place", lambda *_arguments, **_named: None)


def a_commit_names_the_chains_that_it_moves() -> AbstractContextManager[object]:
    """Chains of earlier commits are left out."""
    return patch.object(TableIdentity, "with_chains", lambda _self, moved: dict(moved))


def a_doubt_is_forgotten_with_the_next_commit() -> AbstractContextManager[object]:
    """Of a chain that could not be proved to be new."""

    def without_doubts(*arguments: object, **named: object) -> object:
        return CommitMetadata(*arguments, **{**named, "unproved": frozenset()})  # type: ignore[arg-type]

    return patch.object(commits, "CommitMetadata", without_doubts)
