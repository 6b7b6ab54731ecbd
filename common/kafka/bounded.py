"""What Kafka's client would do without end, with one.

Rules:

1. Closing waits until the brokers have answered what is under way, a commit for example, or until they are known to be
   gone; one that accepts connections and says nothing is neither, for minutes. So a thread closes, and who asked for it
   waits for a bounded time. What has not ended by then is left: it ends when the brokers speak, or with the process.
2. A name that is looked up can not be interrupted, so that closing takes as long as the system's resolver.
3. An answer to an administrator's question comes when its time is over, at the latest. That the client says so itself
   is not relied on.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import KafkaError, KafkaException

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import Consumer

CLOSE_WITHIN_S = 10.0
_GRACE_S = 1.0
Answer = TypeVar("Answer")


def close_within(consumer: Consumer, seconds: float = CLOSE_WITHIN_S) -> bool:
    """Close it; whether that ended in time (rules 1 and 2). Callbacks of the consumer run in another thread meanwhile.

    Raises what closing, or a callback, raises.
    """
    raised: list[BaseException] = []

    def close() -> None:
        try:
            consumer.close()
        except BaseException as error:  # noqa: BLE001 - who waits is to have it
            raised.append(error)

    thread = threading.Thread(target=close, name="close-consumer", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    return not thread.is_alive()


def answer_of(asked: Future[Answer], timeout_s: float) -> Answer:
    """The answer to a question with that time. Raises KafkaException, also when there is none (rule 3)."""
    try:
        return asked.result(timeout_s + _GRACE_S)
    except TimeoutError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error  # noqa: SLF001 - librdkafka's own code
