"""Rules of topics that streams share, each broken on purpose, with the profile that shows it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

from common.spans import Position, TopicPartition
from common.stage import topic_owners
from common.stage.topic_owners import StageTopicOwners
from stage_writer.decode.batch import MessageBatch
from stage_writer.fetch.shared.partition import ChainReader, SharedPartition
from stage_writer.fetch.shared.source import SharedTopicSource
from tests.simulation.world import OPERATED, STALLS, Chances


def _each_program_takes_its_own_first_stream() -> AbstractContextManager[object]:
    return patch.object(StageTopicOwners, "_agreed", lambda _self, _topic, reading_it: next(iter(reading_it)).app_id)


def _the_first_of_the_config_is_the_owner() -> AbstractContextManager[object]:
    return patch.object(topic_owners, "_by_chains", lambda _store, _topic, _reading_it: None)


def _owners_are_known_only_while_topics_are_shared() -> AbstractContextManager[object]:
    return patch.object(topic_owners, "_known", lambda _store: {})


def _a_chain_that_is_behind_gets_what_is_read() -> AbstractContextManager[object]:
    return patch.object(ChainReader, "meets", lambda _self, _start, _batch: True)


def _a_paused_chain_stays_joined() -> AbstractContextManager[object]:
    take = SharedPartition.take

    def stays(self: SharedPartition, batch: MessageBatch) -> list[MessageBatch]:
        joined = [chain for chain in self.chains if chain.joined]
        taken = take(self, batch)
        for chain in joined:
            chain.joined = True
        return taken

    return patch.object(SharedPartition, "take", stays)


def _an_end_is_that_of_all_chains() -> AbstractContextManager[object]:
    reach_end = SharedPartition.reach_end

    def reached(self: SharedPartition, end: Position) -> None:
        reach_end(self, end)
        for chain in self.chains:
            chain.position = self.position

    return patch.object(SharedPartition, "reach_end", reached)


def _a_seek_is_one_of_all_chains() -> AbstractContextManager[object]:
    seek = SharedTopicSource.seek

    def both(self: SharedTopicSource, partition: TopicPartition, position: Position) -> None:
        reader = self._readers.get(partition)
        for chain in () if reader is None else reader[0].chains:
            chain.begin(position, None)
        seek(self, partition, position)

    return patch.object(SharedTopicSource, "seek", both)


RULES: tuple[tuple[str, Callable[[], AbstractContextManager[object]], Chances | None], ...] = (
    ("all programs agree on the owner of a shared topic", _each_program_takes_its_own_first_stream, None),
    ("the stream that staged a topic owns it", _the_first_of_the_config_is_the_owner, None),
    ("the owner stays known when streams leave the config", _owners_are_known_only_while_topics_are_shared, None),
    ("a chain that is behind is read from its own position", _a_chain_that_is_behind_gets_what_is_read, None),
    ("a paused chain is read separately", _a_paused_chain_stays_joined, None),
    ("an end counts for the chains that were read to it", _an_end_is_that_of_all_chains, OPERATED),
    ("a seek moves one chain of a partition", _a_seek_is_one_of_all_chains, STALLS),
)
