"""Topics that this user may not read: their partitions are held, and the others continue.

Rule: a process that may read none of its topics ends with the error, because it can do nothing.
"""

from collections.abc import Callable, Collection

from common.errors import BrokerError
from common.ports import Clock

CHECK_EVERY_S = 30.0


class RefusedTopics:
    def __init__(
        self,
        refused: Callable[[Collection[str]], Collection[str]],
        subscribed: Callable[[], Collection[str]],
        clock: Clock,
    ) -> None:
        """``refused`` is `stage_writer.ports.KafkaMetadata.refused`."""
        self._refused = refused
        self._subscribed = subscribed
        self._clock = clock
        self._checked_at_s: float | None = None

    def require_others(self, error: BrokerError) -> None:
        """Raise ``error``, the refusal of one topic, where all are refused."""
        now_s = self._clock.monotonic_s()
        if self._checked_at_s is not None and now_s - self._checked_at_s < CHECK_EVERY_S:
            return  # each of a topic's partitions is refused
        self._checked_at_s = now_s
        topics = set(self._subscribed())
        try:
            is_refused = topics <= set(self._refused(topics))
        except BrokerError:
            return
        if is_refused:
            raise error
