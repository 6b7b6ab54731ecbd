"""Rules of chains whose origin is moved, each broken on purpose (tests/simulation/backfilled.py)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

from bootstrap.apply import stage
from common.ports import ObjectStore
from common.spans import TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from delta_loader.load.context import LoadContext
from stage_writer.chains import StagedChains
from tests.simulation import operators


@contextmanager
def a_moved_origin_is_ignored() -> Iterator[None]:
    """By writers, and by the loaders behind them."""
    with (
        patch.object(StagedChains, "has_origin_at", lambda *_where, **_own: True),
        patch.object(LoadContext, "origin", lambda _self, _source: None),
    ):
        yield


def records_before_the_first_marker_are_ignored() -> AbstractContextManager[object]:
    return patch.object(LoadContext, "origin", lambda _self, _source: None)


def a_first_load_during_a_rewind_is_ignored() -> AbstractContextManager[object]:
    return patch.object(operators, "require_not_loaded", lambda _plan, _table: None)


def an_origin_is_overwritten() -> AbstractContextManager[object]:
    """By each repair, as in releases that knew one number only: an earlier request may arrive again."""

    def begin(store: ObjectStore, partition: TopicPartition, origin: ChainOrigin) -> None:
        store.write(origin_path(partition), origin_to_bytes(origin))

    return patch.object(stage, "begin", begin)


def a_first_load_in_progress_is_ignored() -> AbstractContextManager[object]:
    return patch.object(operators, "require_not_loading", lambda *_asked: None)
