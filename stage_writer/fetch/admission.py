"""Whether Kafka accepts this process's credentials, and if not, why.

Rules:

1. A process that was never accepted, and is refused for `PATIENCE_S`, has a wrong secret, certificate or permission,
   and ends with that error: waiting would not fix it. It waits for brokers that are only unreachable.
2. A process that was accepted once tolerates refusals, as it does unreachable brokers: secrets are rotated while
   services run.
3. librdkafka reports each failed attempt, many times per second. The same message is logged once per `AGAIN_AFTER_S`.
"""

from confluent_kafka import KafkaError
from structlog.typing import FilteringBoundLogger

from common.errors import BrokerError
from common.kafka.errors import LastClientError, remedy, words
from common.ports import Clock

PATIENCE_S = 15.0
AGAIN_AFTER_S = 60.0


class Admission:
    """librdkafka's reports about its connections; `record` is its ``error_cb``."""

    def __init__(self, servers: str, clock: Clock, log: FilteringBoundLogger) -> None:
        self.client_error = LastClientError()
        self._servers = servers
        self._clock = clock
        self._log = log
        self._refused_at_s: float | None = None
        self._is_in = False
        self._logged: dict[str, float] = {}

    def record(self, error: KafkaError) -> None:
        """Record an error, and log why nothing arrives."""
        now_s, text = self._clock.monotonic_s(), words(error)
        self.client_error.record(error)
        if self.client_error.is_refusal and self._refused_at_s is None:
            self._refused_at_s = now_s
        self._logged = {text: at_s for text, at_s in self._logged.items() if now_s - at_s < AGAIN_AFTER_S}
        if text not in self._logged:
            self._logged[text] = now_s
            self._log.warning("kafka", problem=text)

    def let_in(self) -> None:
        """The group has accepted this process."""
        self._is_in = True

    def require(self) -> None:
        """Raise BrokerError by rule 1."""
        if self._is_in or self._refused_at_s is None or not self.client_error.is_refusal:
            return
        if self._clock.monotonic_s() - self._refused_at_s >= PATIENCE_S:
            msg = f"Kafka at {self._servers} refuses this client: {self.client_error.text}"
            raise BrokerError(msg, remedy(self.client_error.name, self.client_error.text))
