"""Reads writers' messages in the control topic: a `delta_loader.scheduling.notifications.ControlTopic` with a thread.

Rules:

1. It is assigned to all partitions, from their ends. No group is joined and no offset is kept: messages sent while no
   loader listened are covered by a full scan, and all streams count as notified when listening starts.
2. A message is accepted as a notification for a stream that this loader has; any other is ignored
   (common/stage/notifications.py, rule 4).
3. A deleted topic, an unavailable broker, or a missing right ends nothing and blocks nothing. The connection is retried
   with growing pauses, and logged once; meanwhile `is_connected` is false, so the stage is checked more often. Each try
   has a new client: a client that knew a topic before it was recreated may ask the new one for an epoch that it has not
   reached, and is refused for minutes.
4. A deleted topic, or one with more partitions, is noticed within `CHECK_EVERY_S`. A topic that was deleted and
   recreated between two checks is read on, by an offset of its own or from its end.
"""

import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition
from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.backoff import Backoff
from common.errors import BrokerError, ConfigError
from common.kafka.client import QUIET, client_properties, close_within, taking_properties
from common.kafka.errors import LastClientError, broker_error
from common.kafka.reader import NO_GROUP, require_allowed
from common.metrics import Metrics
from common.settings.section import Option
from common.stage.notifications import notified_stream

_TIMEOUT_S = 5.0
_POLL_S = 0.5
CHECK_EVERY_S = 10.0
"""How often the partitions are checked: librdkafka takes long to report a deleted topic."""
_CLOSE_WITHIN_S = 10.0


class Listener:
    def __init__(
        self,
        kafka: Mapping[str, Option],
        topic: str,
        app_ids: Collection[str],
        *,
        log: FilteringBoundLogger,
        metrics: Metrics,
        check_every_s: float = CHECK_EVERY_S,
    ) -> None:
        """Starts at once, and waits for no broker. Raises ConfigError for properties that librdkafka refuses."""
        self._topic = topic
        self._what = f"read the control topic {topic!r}"
        self._app_ids = frozenset(app_ids)
        self._log = log
        self._metrics = metrics
        self._check_every_s = check_every_s
        self._servers = str(kafka["bootstrap.servers"])
        self._client_error = LastClientError()
        self._away: KafkaError | None = None
        self._notified: set[str] = set()
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._closed = threading.Event()
        self.is_connected = False
        self.problem: BrokerError | None = None
        """Why they do not arrive; None while they do, and before the first try has ended."""
        self._kafka = kafka
        self._consumer = self._new_consumer()
        metrics.set(all_metrics.LOADER_CONTROL_TOPIC, 0)
        self._thread = threading.Thread(target=self._run, name="control-topic", daemon=True)
        self._thread.start()

    def _new_consumer(self) -> Consumer:
        kafka = self._kafka
        # Of the consumer's own properties, only the one that others must agree with.
        given = {**client_properties(kafka), **{key: kafka[key] for key in ("fetch.max.bytes",) if key in kafka}}
        fixed: dict[str, Option] = {
            "group.id": "delta-loader-control",  # required by the client; it is never joined
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "latest",
            "queued.min.messages": 1000,
            "queued.max.messages.kbytes": 1024,  # a flood from another program waits at the broker
            "fetch.message.max.bytes": 65_536,
        }
        with taking_properties():
            return Consumer({**given, **fixed, "error_cb": self._record_client_error}, logger=QUIET)

    def take(self) -> frozenset[str]:
        """The streams that were notified since the last call."""
        with self._lock:
            taken, self._notified = frozenset(self._notified), set()
        return taken

    def wait(self, seconds: float) -> None:
        """Wait until a stream is notified, or the time is over."""
        if self._arrived.wait(seconds):
            self._arrived.clear()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(_CLOSE_WITHIN_S)

    # The thread.

    def _run(self) -> None:
        backoff = Backoff(1.0, 10.0)
        while not self._closed.is_set():
            try:
                partitions = self._begin()
                backoff.reset()
                self._listen(partitions)
            except KafkaException as error:
                fault = error.args[0]
                self._lost(broker_error(self._what, self._servers, fault, self._client_error, user_of=self._topic))
            except BrokerError as error:
                self._lost(error)
            except Exception as error:  # noqa: BLE001 - a bug must not pass for a silent topic
                self._log.exception("unexpected exception", part="control topic")
                self._lost(BrokerError(f"unexpected {type(error).__name__}: {error}", "report it with the log"))
            else:
                continue  # the partitions have changed, or it is closed
            self._closed.wait(backoff.next_s())
            self._rejoin()
        close_within(self._consumer)

    def _rejoin(self) -> None:
        """Start with another client, unless none can be made now: a certificate may be about to arrive."""
        with suppress(ConfigError):
            fresh = self._new_consumer()
            close_within(self._consumer)
            self._consumer = fresh

    def _begin(self) -> list[int]:
        """Assign the ends (rule 1). Raises KafkaException and BrokerError."""
        self._consumer.unassign()
        partitions = self._partitions()
        ends = [self._end_of(partition) for partition in partitions]
        self._consumer.poll(0)  # delivers the client's connection errors, which are over now
        self._client_error, self._away = LastClientError(), None
        self._consumer.assign(ends)
        self._notify(self._app_ids)
        if not self.is_connected:
            again = self.problem is not None
            self.is_connected, self.problem = True, None
            self._metrics.set(all_metrics.LOADER_CONTROL_TOPIC, 1)
            self._log.info("control topic connected", topic=self._topic, partitions=len(partitions), again=again)
        return partitions

    def _end_of(self, partition: int) -> KafkaPartition:
        _, high = self._consumer.get_watermark_offsets(KafkaPartition(self._topic, partition), timeout=_TIMEOUT_S)
        return KafkaPartition(self._topic, partition, high)

    def _listen(self, partitions: list[int]) -> None:
        """Listen until closed, or until the topic's partitions change. Raises KafkaException and BrokerError."""
        check_at_s = time.monotonic() + self._check_every_s
        while not self._closed.is_set():
            message = self._consumer.poll(_POLL_S)
            if message is not None:
                self._take_message(message)
            if self._away is not None:
                raise broker_error(self._what, self._servers, self._away, self._client_error)
            if time.monotonic() >= check_at_s:
                check_at_s = time.monotonic() + self._check_every_s
                if self._partitions() != partitions:
                    return

    def _partitions(self) -> list[int]:
        partitions = require_allowed(self._consumer, self._topic, _TIMEOUT_S)
        if not partitions:
            msg = f"the control topic {self._topic!r} does not exist in Kafka at {self._servers}"
            raise BrokerError(msg, "create the topic (one partition is enough), or correct loader.control_topic")
        return partitions

    def _take_message(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if error.code() == NO_GROUP:  # no group is wanted
                return
            raise KafkaException(error)
        key, value = message.key(), message.value()
        app_id = notified_stream(key, value)
        known = app_id in self._app_ids
        self._metrics.add(all_metrics.LOADER_CONTROL_MESSAGES, kind="news" if known else "other")
        if known and app_id is not None:
            self._notify({app_id})

    def _notify(self, app_ids: Collection[str]) -> None:
        with self._lock:
            before = len(self._notified)
            self._notified.update(app_ids)
            is_new = len(self._notified) > before
        if is_new:
            self._arrived.set()

    def _record_client_error(self, fault: KafkaError) -> None:
        self._client_error.record(fault)
        if fault.name() == "_ALL_BROKERS_DOWN":
            self._away = fault

    def _lost(self, error: BrokerError) -> None:
        was_known = self.problem is not None
        self.is_connected, self.problem = False, error
        if not was_known:
            self._metrics.set(all_metrics.LOADER_CONTROL_TOPIC, 0)
            self._log.warning("control topic disconnected", problem=error.problem, remedy=error.remedy)
