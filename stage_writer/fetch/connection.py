"""The clients of one group member: the consumer that it reads with, an admin client, and what their errors mean."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from structlog.typing import FilteringBoundLogger

from common.kafka.bounded import CLOSE_WITHIN_S, close_within
from common.kafka.client import QUIET, client_properties, refused_property
from common.kafka.errors import broker_error
from common.ports import Clock
from common.settings import Settings
from common.settings.section import Option
from stage_writer.fetch.admission import Admission

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
        self._were_away = False
        try:
            self.consumer = Consumer({**properties, "error_cb": self.record}, logger=QUIET)
            self.admin = AdminClient(client_properties(settings.kafka), logger=QUIET)
        except KafkaException as error:
            reason = error.args[0].str() if isinstance(error.args[0], KafkaError) else str(error)
            raise refused_property(reason) from error

    def record(self, error: KafkaError) -> None:
        """Librdkafka's ``error_cb``."""
        self._were_away = self._were_away or error.code() == _ALL_AWAY
        self.admission.record(error)

    def were_away(self) -> bool:
        """Whether all brokers were unreachable since the last call."""
        were_away, self._were_away = self._were_away, False
        return were_away

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
