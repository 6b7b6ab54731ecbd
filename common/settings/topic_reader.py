"""Which topics, and which chains of the stage, are a stream's."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import quote

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, WithJsonSchema, field_validator

from common.settings.section import Section, refuse
from common.spans import Topic, TopicPartition
from common.stage.merged import kafka_topic, shared_chain, stream_of, topics_of

_LONGEST_APP_ID = 250
"""Bytes, percent-encoded: with an extension it is the name of a file, for which local disks allow 255."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def _is_name(topic: str) -> bool:
    return _NAME.fullmatch(topic) is not None and topic not in {".", ".."}


def _require_name(topic: str) -> str:
    if not _is_name(topic):
        refuse("is not a topic name; use 1 to 249 letters, digits, dots, underscores and hyphens")
    return topic


TopicName = Annotated[
    str, AfterValidator(_require_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"})
]


def require_topics(value: object) -> object:
    """The topics unchanged. Raises ValueError unless they are names, or one regular expression."""
    if not isinstance(value, list | tuple) or not all(isinstance(topic, str) for topic in value):
        refuse("is not a list of topics; write [orders] or [^orders-.*]")
    patterns = [topic for topic in value if topic.startswith("^")]
    if patterns and len(value) > 1:
        refuse("mixes a regular expression with other topics; give one expression alone, or names only")
    for topic in value:
        if topic.startswith("^"):
            _compile(topic)
        elif not _is_name(topic):
            refuse(f"holds {topic!r}, which is not a topic name; letters, digits, '.', '_' and '-' are allowed")
    if len(set(value)) < len(value):
        refuse("names a topic twice; name each once")
    return value


def _compile(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        msg = f"holds {pattern!r}, which is not a regular expression ({error}); fix it, or write the topics' names"
        raise ValueError(msg) from None


Topics = Annotated[tuple[str, ...], BeforeValidator(require_topics)]


@dataclass(slots=True)
class TopicOwners:
    """The known owners of topics that streams share or have shared. Any thread may read it."""

    by_topic: Mapping[str, str] = field(default_factory=dict)
    """The app_id of each topic's owner. Replaced as a whole; an owner never changes."""
    expected: Mapping[str, str] = field(default_factory=dict)
    """Owners that nothing has decided yet: those that a program would choose now, and shows."""

    def add(self, owners: Mapping[str, str]) -> None:
        self.by_topic = {**self.by_topic, **owners}

    def expect(self, owners: Mapping[str, str]) -> None:
        """Go by these until they are known."""
        self.expected = {**self.expected, **owners}

    def allow(self, chain: str, app_id: str) -> bool:
        """Whether a chain's name may be one of this stream's, if the stream reads its topics."""
        named = stream_of(chain)
        if named is None:
            return self._owner(chain, app_id) == app_id
        return named == app_id != self._owner(kafka_topic(chain), "")

    def chain_of(self, topic: str, app_id: str) -> Topic:
        """The name of a stream's chains of a topic; the topic's own while no owner is known."""
        return Topic(topic) if self._owner(topic, app_id) == app_id else shared_chain(topic, app_id)

    def _owner(self, topic: str, without: str) -> str:
        return self.by_topic.get(topic) or self.expected.get(topic, without)


class TopicReader(Section):
    """A stream, as far as its topics go."""

    app_id: str = Field(
        min_length=1, description="Name of the stream; the table's txn actions carry it, so it must never change."
    )
    topics: Topics = Field(min_length=1, description="Topic names, or one regular expression that begins with `^`.")

    @field_validator("app_id")
    @classmethod
    def _app_id(cls, value: str) -> str:
        too_long = len(quote(value, safe="")) > _LONGEST_APP_ID
        if value in {".", ".."} or not value.isprintable() or not value.strip() or too_long:
            refuse("cannot be the name of a folder in the stage; use letters, digits, '-' and '_', at most 250")
        return value

    _owners: TopicOwners = PrivateAttr(default_factory=TopicOwners)

    def share(self, owners: TopicOwners) -> None:
        """Use the owners that the other streams of the config use too."""
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
        pattern = self.pattern
        return topic in self.topics if pattern is None else pattern.match(topic) is not None

    def takes(self, chain: str) -> bool:
        """Whether the chains of this name (common/stage/merged.py) are this stream's."""
        return self._owners.allow(chain, self.app_id) and all(map(self.reads, topics_of(chain)))

    def chain_of(self, topic: str) -> Topic:
        return self._owners.chain_of(topic, self.app_id)

    def chain_at(self, partition: TopicPartition) -> TopicPartition:
        return TopicPartition(self.chain_of(partition.topic), partition.partition)
