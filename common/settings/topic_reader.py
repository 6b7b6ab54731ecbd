"""Which topics, and which chains of the stage, are a stream's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import PrivateAttr

from common.settings.overlap import TopicOwners
from common.settings.section import Section
from common.spans import TopicPartition
from common.stage.merged import topics_of

if TYPE_CHECKING:
    from common.spans import Topic


class TopicReader(Section):
    """A stream, as far as its topics go."""

    if TYPE_CHECKING:
        app_id: str
        topics: tuple[str, ...]

    _owners: TopicOwners = PrivateAttr(default_factory=TopicOwners)

    def share(self, owners: TopicOwners) -> None:
        """Know the owners of shared topics that the other streams of the config know."""
        self._owners = owners

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """The regular expression of the topics; None when they are names."""
        return re.compile(self.topics[0]) if self.topics[0].startswith("^") else None

    @property
    def several_topics(self) -> bool:
        """Whether txn actions must name the topic: several names, or a regular expression."""
        return len(self.topics) > 1 or self.pattern is not None

    def reads(self, topic: str) -> bool:
        """Whether a Kafka topic is one of its topics."""
        pattern = self.pattern
        return topic in self.topics if pattern is None else pattern.match(topic) is not None

    def takes(self, chain: str) -> bool:
        """Whether the chains of this name (common/stage/merged.py) are this stream's."""
        return self._owners.allow(chain, self.app_id) and all(map(self.reads, topics_of(chain)))

    def chain_of(self, topic: str) -> Topic:
        """The name of its chains of a Kafka topic."""
        return self._owners.chain_of(topic, self.app_id)

    def chain_at(self, partition: TopicPartition) -> TopicPartition:
        """Its chain of a Kafka partition."""
        return TopicPartition(self.chain_of(partition.topic), partition.partition)
