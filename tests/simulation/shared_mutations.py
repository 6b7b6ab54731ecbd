"""Rules of topics that streams share, each broken on purpose, with the profile that shows it."""

from collections.abc import Callable

from common.spans import Position, TopicPartition
from common.stage import topic_owners
from common.stage.topic_owners import StageTopicOwners
from stage_writer.decode.batch import MessageBatch
from stage_writer.fetch.shared.partition import ChainReader, SharedPartition
from stage_writer.fetch.shared.source import SharedTopicSource
from tests.simulation.mutation import Mutation, changed, wrapped
from tests.simulation.world import OPERATED, STALLS
from tests.simulation.worlds import Worlds


def _stay_joined(
    real: Callable[..., list[MessageBatch]], self: SharedPartition, batch: MessageBatch
) -> list[MessageBatch]:
    joined = [chain for chain in self.chains if chain.joined]
    taken = real(self, batch)
    for chain in joined:
        chain.joined = True
    return taken


def _all_reach(real: Callable[..., None], self: SharedPartition, end: Position) -> None:
    real(self, end)
    for chain in self.chains:
        chain.position = self.position


def _all_seek(real: Callable[..., None], self: SharedTopicSource, partition: TopicPartition, to: Position) -> None:
    reader = self._readers.get(partition)
    for chain in () if reader is None else reader[0].chains:
        chain.begin(to, None)
    real(self, partition, to)


_own_first = changed(StageTopicOwners, "_agreed", lambda _self, _topic, reading_it: next(iter(reading_it)).app_id)
_first_of_the_config = changed(StageTopicOwners, "_by_chains", lambda *_: None)
_known_while_shared = changed(topic_owners, "_known", lambda _store: {})
_all_meet = changed(ChainReader, "meets", lambda *_: True)
_joined_in_a_pause = wrapped(SharedPartition, "take", _stay_joined)
_end_of_all = wrapped(SharedPartition, "reach_end", _all_reach)
_seek_of_all = wrapped(SharedTopicSource, "seek", _all_seek)
RULES = (
    Mutation("all programs agree on the owner of a shared topic", _own_first, worlds=Worlds.SHARED),
    Mutation("the stream that staged a topic owns it", _first_of_the_config, worlds=Worlds.SHARED),
    Mutation("the owner stays known when streams leave the config", _known_while_shared, worlds=Worlds.SHARED),
    Mutation("a chain that is behind is read from its own position", _all_meet, worlds=Worlds.SHARED),
    Mutation("a paused chain is read separately", _joined_in_a_pause, worlds=Worlds.SHARED),
    Mutation("an end counts for the chains that were read to it", _end_of_all, OPERATED, Worlds.SHARED),
    Mutation("a seek moves one chain of a partition", _seek_of_all, STALLS, Worlds.SHARED),
)
