"""The topics that the group member subscribes to.

Topics that are given as a regular expression are matched here, by the same rule that the loader uses, and refreshed
periodically; librdkafka gets names only. The writer waits for a named topic that does not exist, and reports it.
"""

from collections.abc import Callable, Collection

from structlog.typing import FilteringBoundLogger

from common.errors import BrokerError, MarkerError, StoreError
from common.ports import Clock
from common.settings import Stream
from common.settings.overlap import UnsubscribedTopics
from stage_writer.fetch.consumer_properties import TOPICS_EVERY_S
from stage_writer.fetch.metadata import BrokerMetadata, TopicSharing, require_shareable


class TopicSubscription:
    def __init__(
        self,
        metadata: BrokerMetadata,
        sharing: TopicSharing,
        unsubscribed: UnsubscribedTopics,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        """``unsubscribed`` is kept up to date."""
        self._metadata = metadata
        self._sharing = sharing
        self._unsubscribed = unsubscribed
        self._clock = clock
        self._log = log
        self._streams: tuple[Stream, ...] = ()
        self.topics: tuple[str, ...] = ()
        """The subscribed ones."""
        self._refreshed_at_s = 0.0
        self._subscribe: Callable[[list[str]], None] = lambda _: None

    def begin(self, streams: Collection[Stream], subscribe: Callable[[list[str]], None]) -> None:
        """Subscribe to the streams' topics; ``subscribe`` is called now, and whenever the topics have changed."""
        self._streams, self._subscribe = tuple(streams), subscribe
        self.refresh()

    def refresh_if_due(self) -> None:
        if not self._has_patterns or self._clock.monotonic_s() - self._refreshed_at_s < TOPICS_EVERY_S:
            return
        try:
            self.refresh()
        except (BrokerError, StoreError, MarkerError) as error:
            # Brokers that are unreachable for a while are no reason to drop buffers; topic names survive that as well.
            self._refreshed_at_s = self._clock.monotonic_s()
            self._log.warning("topics not read, trying again", problem=error.problem)

    def refresh(self) -> None:
        names = {topic for stream in self._streams if stream.pattern is None for topic in stream.topics}
        if self._has_patterns:
            topics = self._metadata.topics()
            names |= {topic for topic in topics if any(stream.reads(topic) for stream in self._streams)}
            names -= self._shared(names)
        self._refreshed_at_s = self._clock.monotonic_s()
        topics_now = tuple(sorted(names))
        if topics_now and topics_now != self.topics:
            self.topics = topics_now
            self._subscribe(list(topics_now))

    @property
    def _has_patterns(self) -> bool:
        return any(stream.pattern for stream in self._streams)

    def _shared(self, names: Collection[str]) -> set[str]:
        """Topics that appeared since startup and that several streams match: none reads them. Raises ConfigError."""
        if not self.topics:
            require_shareable(self._sharing, names)
        shared = self._sharing(names)
        for topic, error in shared.items():
            if topic not in self._unsubscribed.problems:
                self._log.error("topic not read", topic=topic, problem=error.problem, remedy=error.remedy)
        self._unsubscribed.problems = shared
        return set(shared)
