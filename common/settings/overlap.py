"""Topics that several streams of a config match: two regular expressions, which the config alone does not reveal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from common.settings.stream import Stream

APART = "put one of them into a config with a stage.url and a writer.group_id of its own"
"""What to do with two streams that take one topic."""


@dataclass(slots=True)
class UnreadTopics:
    """Topics that appeared while a writer runs, and that it reads for none of the streams."""

    found: Mapping[str, ConfigError] = field(default_factory=dict)
    """The reason, by topic. Replaced as a whole, so any thread may read it."""


def shared_topics(streams: Collection[Stream], topics: Collection[str]) -> dict[str, ConfigError]:
    """The topics that more than one stream matches, and the problem with each."""
    takers = {topic: [stream.app_id for stream in streams if stream.takes(topic)] for topic in sorted(topics)}
    return {topic: _error(topic, names) for topic, names in takers.items() if len(names) > 1}


def require_apart(streams: Collection[Stream], topics: Collection[str]) -> None:
    """Raises ConfigError for a topic that more than one stream matches."""
    for error in shared_topics(streams, topics).values():
        raise error


def _error(topic: str, names: list[str]) -> ConfigError:
    named = " and ".join(map(repr, names))
    msg = f"the streams {named} both take the topic {topic!r}, and a stage has one chain for each topic"
    return ConfigError(msg, f"change streams[].topics so that one of them takes it, or {APART}")
