"""The clients of one group member: the consumer that it reads with, an admin client, and what their errors mean.

Rules:

1. A process that was never accepted, and is refused for `PATIENCE_S`, has a wrong secret, certificate or permission,
   and ends with that error: waiting would not fix it. It waits for brokers that are only unreachable.
2. A process that was accepted once tolerates refusals, as it does unreachable brokers: secrets are rotated while
   services run.
3. librdkafka reports each failed attempt, many times per second. The same message is logged once per `AGAIN_AFTER_S`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from structlog.typing import FilteringBoundLogger

from common.errors import BrokerError
from common.kafka.client import CLOSE_WITHIN_S, QUIET, client_properties, close_within, refused_property
from common.kafka.errors import LastClientError, broker_error, remedy, words
from common.ports import Clock
from common.settings import Settings
from common.settings.section import Option

PATIENCE_S = 15.0
AGAIN_AFTER_S = 60.0
_ALL_AWAY = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - librdkafka's own codes begin with an underscore


class KafkaConnection:
    """Contacts nothing before it is used. Raises ConfigError for properties that librdkafka rejects."""

    def __init__(
        self, settings: Settings, properties: Mapping[str, Option], clock: Clock, log: FilteringBoundLogger
    ) -> None:
        """``properties`` are the consumer's."""
        self.servers = str(settings.kafka["bootstrap.servers"])
        self.group_id = settings.writer.group_id
        self.admission = Admission(self.servers, clock, log)
        self.is_subscribed = False
        self._were_unreachable = False
        try:
            self.consumer = Consumer({**properties, "error_cb": self.record}, logger=QUIET)
            self.admin = AdminClient(client_properties(settings.kafka), logger=QUIET)
        except KafkaException as error:
            reason = error.args[0].str() if isinstance(error.args[0], KafkaError) else str(error)
            raise refused_property(reason) from error

    def record(self, error: KafkaError) -> None:
        """Librdkafka's ``error_cb``."""
        self._were_unreachable = self._were_unreachable or error.code() == _ALL_AWAY
        self.admission.record(error)

    def brokers_were_unreachable(self) -> bool:
        """Whether all brokers were unreachable since the last call."""
        were_unreachable, self._were_unreachable = self._were_unreachable, False
        return were_unreachable

    @contextmanager
    def errors(self, what: str, user_of: str = "") -> Iterator[None]:
        """Raises BrokerError where ``what`` is done; ``user_of`` is the topic that it needs rights on."""
        try:
            yield
        except KafkaException as error:
            if not self.is_subscribed:  # loses nothing: librdkafka delivers its connection events
                self.consumer.poll(0)
            client_error = self.admission.client_error
            raise broker_error(what, self.servers, error.args[0], client_error, user_of=user_of) from error

    def close(self, revoke_timeout_s: float) -> bool:
        """Leave the group, in a thread that this call joins; whether Kafka answered."""
        return close_within(self.consumer, revoke_timeout_s + CLOSE_WITHIN_S)


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

    def accepted(self) -> None:
        """The group has accepted this process."""
        self._is_in = True

    def require(self) -> None:
        """Raise BrokerError by rule 1."""
        if self._is_in or self._refused_at_s is None or not self.client_error.is_refusal:
            return
        if self._clock.monotonic_s() - self._refused_at_s >= PATIENCE_S:
            msg = f"Kafka at {self._servers} refuses this client: {self.client_error.text}"
            raise BrokerError(msg, remedy(self.client_error.name, self.client_error.text))
