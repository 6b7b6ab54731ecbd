"""Which topics are merged, and whether their partitions in Kafka allow it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from common.errors import ConfigError
from common.spans import Position, TopicPartition
from common.stage.merged import LONGEST, InputEnd, chain_topic, inputs_of, is_merged, merged_position


@dataclass(frozen=True, slots=True)
class TopicGroup:
    """Topics whose partitions with the same number are read as one chain."""

    topics: tuple[str, ...]
    longest_idle_s: float = 0.0
    """How long to wait for an input that was read to its end."""

    def __post_init__(self) -> None:
        """Raises ConfigError if the joined name is too long."""
        if len(chain_topic(self.topics)) > LONGEST:
            msg = (
                f"the names of the topics {', '.join(sorted(self.topics))} have more than {LONGEST} characters together"
            )
            raise ConfigError(
                msg, "a topology that joins them needs shorter names, because their chain has all of them"
            )


@dataclass(frozen=True, slots=True)
class TopicGroups:
    """All groups of a writer. A topic is in at most one. Raises ConfigError for a topic in two."""

    groups: tuple[TopicGroup, ...]
    _by_topic: dict[str, TopicGroup] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for group in self.groups:
            for topic in group.topics:
                if topic in self._by_topic:
                    msg = f"the topic {topic} is joined with two different sets of topics"
                    raise ConfigError(msg, "join all of them in one part of one topology")
                self._by_topic[topic] = group

    def chain_of(self, partition: TopicPartition) -> TopicPartition:
        """The chain of a Kafka partition: its own for most."""
        group = self._by_topic.get(partition.topic)
        return partition if group is None else TopicPartition(chain_topic(group.topics), partition.partition)

    def longest_idle_s(self, chain: TopicPartition) -> float:
        return self._by_topic[inputs_of(chain)[0].topic].longest_idle_s

    def chains(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
        """Positions of Kafka partitions as those of chains; inputs of incomplete chains stay unchanged."""
        by_chain: dict[TopicPartition, Position] = {}
        for topic_partition, position in positions.items():
            chain = self.chain_of(topic_partition)
            if not is_merged(chain.topic) or any(partition not in positions for partition in inputs_of(chain)):
                by_chain[topic_partition] = position
            else:
                by_chain[chain] = merged_position(
                    InputEnd(partition, positions[partition]) for partition in inputs_of(chain)
                )
        return by_chain

    def require_equal_counts(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises ConfigError where topics of one group have different numbers of partitions; ignores missing topics."""
        counts: dict[str, int] = {}
        for partition in partitions:
            counts[partition.topic] = counts.get(partition.topic, 0) + 1
        for group in self.groups:
            known = {topic: counts[topic] for topic in sorted(group.topics) if topic in counts}
            if len(set(known.values())) > 1:
                raise _unequal(known)


def _unequal(counts: Mapping[str, int]) -> ConfigError:
    counted = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
    msg = (
        f"a topology joins topics with different numbers of partitions ({counted}), so records of one key do "
        "not reach the same task"
    )
    most = max(counts.values())
    return ConfigError(
        msg, f"repartition the smaller ones through a topic of {most} partitions (`through`), or create equal topics"
    )


def spread(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The Kafka partitions behind: a chain's inputs, or the partition itself where it is not merged."""
    behind = (inputs_of(partition) if is_merged(partition.topic) else (partition,) for partition in partitions)
    return [kafka_partition for part in behind for kafka_partition in part]
