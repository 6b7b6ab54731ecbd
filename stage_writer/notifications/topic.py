"""The control topic, with a Kafka producer: a `stage_writer.notifications.notifier.NotificationTopic`.

Rules:

1. A notification is worthless after the loader's next full scan: delivery is tried for a few seconds and then
   abandoned. The writer's loop never waits for Kafka here.
2. A failure of the topic is logged once, and so is its recovery.
"""

from collections import Counter
from collections.abc import Mapping
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.kafka.client import QUIET, client_properties, taking_properties
from common.kafka.errors import LastClientError, words
from common.metrics import Metrics
from common.remedies import CONFIG
from common.settings.section import Option
from common.stage.notifications import MESSAGE, notification_key

_GIVE_UP_AFTER_S = 5.0
_MOST_WAITING = 10_000
_TIMED_OUT = KafkaError._MSG_TIMED_OUT  # noqa: SLF001 - librdkafka's own codes begin with an underscore
_REMEDY = f"check that the topic exists, and allow this user to WRITE to it; `stage-writer check {CONFIG}` tests both"


class KafkaControlTopic:
    """One writer's producer for the topic."""

    def __init__(
        self,
        kafka: Mapping[str, Option],
        topic: str,
        log: FilteringBoundLogger,
        metrics: Metrics,
        give_up_after_s: float = _GIVE_UP_AFTER_S,
    ) -> None:
        """Does not wait for a broker. Raises ConfigError for properties that librdkafka rejects."""
        self._topic = topic
        self._log = log
        self._metrics = metrics
        self._client_error = LastClientError()
        self._in_flight = Counter[str]()
        self._undelivered: set[str] = set()
        self.problem: str | None = None
        fixed: dict[str, Option] = {
            "acks": 1,
            "enable.idempotence": False,
            "linger.ms": 0,
            "message.timeout.ms": int(give_up_after_s * 1000),
            "queue.buffering.max.messages": _MOST_WAITING,
        }
        with taking_properties():
            self._producer = Producer(
                {**client_properties(kafka), **fixed, "error_cb": self._client_error.record}, logger=QUIET
            )
        metrics.set(all_metrics.WRITER_CONTROL_TOPIC, 1)

    def send(self, app_id: str) -> bool:
        relied_on = self.problem is None
        try:
            delivered = partial(self._delivered, app_id, relied_on=relied_on)
            self._producer.produce(self._topic, MESSAGE, notification_key(app_id), on_delivery=delivered)
        except BufferError:
            self._failed("too many messages wait for Kafka")
            return False
        except KafkaException as error:
            self._failed(words(error.args[0]))
            return False
        self._in_flight[app_id] += relied_on
        return relied_on

    def undelivered(self) -> frozenset[str]:
        self._producer.poll(0)  # calls `_delivered`
        app_ids, self._undelivered = frozenset(self._undelivered), set()
        return app_ids

    def end(self, within_s: float) -> frozenset[str]:
        self._producer.flush(within_s)
        return self.undelivered() | frozenset(self._in_flight)

    def _delivered(self, app_id: str, error: KafkaError | None, _message: Message, *, relied_on: bool) -> None:
        self._in_flight[app_id] -= relied_on
        self._in_flight += Counter()  # keeps only values above zero
        if error is not None:
            if relied_on:
                self._undelivered.add(app_id)
            late = error.code() == _TIMED_OUT and self._client_error.text
            self._failed(self._client_error.text if late else words(error))
            return
        self._metrics.add(all_metrics.WRITER_NOTIFICATIONS, way="topic")
        if self.problem is not None:
            self.problem, self._client_error.text = None, ""
            self._metrics.set(all_metrics.WRITER_CONTROL_TOPIC, 1)
            self._log.info("control topic accepts messages again", topic=self._topic)

    def _failed(self, reason: str) -> None:
        if self.problem is None:
            self.problem = f"the control topic {self._topic!r} does not accept messages: {reason}"
            self._metrics.set(all_metrics.WRITER_CONTROL_TOPIC, 0)
            self._log.warning("control topic refused a notification", problem=self.problem, remedy=_REMEDY)
