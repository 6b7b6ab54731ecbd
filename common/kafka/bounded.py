"""Timeouts for operations of Kafka's client that have none.

Rules:

1. Closing waits until the brokers have responded to requests in progress, a commit for example, or until they are known
   to be gone; a broker that accepts connections and does not respond is neither, for minutes. So a thread closes, and
   the caller waits for a bounded time. A close that is not done by then is left running: it ends when the brokers
   respond, or with the process.
2. A DNS lookup cannot be interrupted, so closing takes as long as the system's resolver.
3. An admin request is answered within its timeout. This does not rely on the client to enforce it.
"""

from concurrent.futures import Future, wait
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException

from common.background import in_background

CLOSE_WITHIN_S = 10.0
_GRACE_S = 1.0
Answer = TypeVar("Answer")


def close_within(consumer: Consumer, seconds: float = CLOSE_WITHIN_S) -> bool:
    """Close it. Returns whether that ended in time (rules 1 and 2). The consumer's callbacks run in another thread.

    Raises the errors of closing, or of a callback.
    """
    closing = in_background("close-consumer", consumer.close)
    done, _ = wait([closing], seconds)
    if done:
        closing.result()
    return bool(done)


def result_of(future: Future[Answer], timeout_s: float) -> Answer:
    """The result of a request with that timeout. Raises KafkaException, also after the timeout (rule 3)."""
    try:
        return future.result(timeout_s + _GRACE_S)
    except TimeoutError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error  # noqa: SLF001 - librdkafka's own code
