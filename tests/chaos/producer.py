"""``python -m tests.chaos.producer SERVERS TOPIC SEED RATE LEDGER STATE``: sends records until SIGTERM.

Rules:

1. Blocks of records are sent alternately by an idempotent producer, or in a transaction, which is committed or aborted.
2. The ledger has a line for each finished block: its first number, the number after its last, and ``kept`` or
   ``aborted``, or ``unknown`` when Kafka does not say.
3. The records of a deliberately aborted transaction are never sent again; those of a transaction that Kafka aborted
   are.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.chaos.events import event
from tests.chaos.records import Record, record
from tests.chaos.stateful import State

BLOCK = 60
KEPT, ABORTED, UNKNOWN = "kept", "aborted", "unknown"
_TIMEOUT_S = 120


class Sender:
    def __init__(self, servers: str, topic: str, of: Callable[[int], Record]) -> None:
        """``of`` gives the record of a number."""
        self._topic = topic
        self._of = of
        self._properties = {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 20,
            "log_level": 0,
            "reconnect.backoff.max.ms": 1000,
        }
        self._plain = Producer(self._properties)
        self._transactional = self._begin_transactional()

    def send(self, number: int, block: Iterable[int]) -> str:
        if number % 5 == 3:
            return self._in_transaction(list(block), abort=number % 15 == 8)
        return self._without(block)

    def _without(self, block: Iterable[int]) -> str:
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failed.append(error)

        self._produce(self._plain, block, delivered)
        return UNKNOWN if self._plain.flush(_TIMEOUT_S) or failed else KEPT

    def _in_transaction(self, block: list[int], *, abort: bool) -> str:
        while True:
            try:
                self._transactional.begin_transaction()
                self._produce(self._transactional, block, None)
                self._transactional.flush(_TIMEOUT_S)
                if abort:
                    self._again(self._transactional.abort_transaction)
                    return ABORTED
                self._again(self._transactional.commit_transaction)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    # Only Kafka knows whether the transaction was committed; a new producer ends it either way.
                    self._transactional = self._begin_transactional()
                    return UNKNOWN
                self._again(self._transactional.abort_transaction)
            else:
                return KEPT

    def _produce(self, producer: Producer, block: Iterable[int], delivered: object) -> None:
        for number in block:
            record = self._of(number)
            producer.produce(self._topic, record.value, record.key, partition=record.partition, on_delivery=delivered)

    def _begin_transactional(self) -> Producer:
        producer = Producer({**self._properties, "transactional.id": self._topic, "transaction.timeout.ms": 20_000})
        self._again(producer.init_transactions)
        return producer

    @staticmethod
    def _again(step: object) -> None:
        """Repeat a retriable step until it succeeds. Raises errors that cannot be retried."""
        assert callable(step)
        while True:
            try:
                step(30)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return


def record_of(state: State) -> Callable[[int, int], Record]:
    """The function from a number to its record, for a seed."""
    return event if state is State.EVENTS else record


def main(  # noqa: PLR0917 - as on the command line
    servers: str, topic: str, seed: str, rate: str, ledger: str, state: str
) -> None:
    """Send until SIGTERM."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    sender = Sender(servers, topic, partial(record_of(State(state)), int(seed)))
    with Path(ledger).open("a", encoding="ascii", buffering=1) as lines:
        began_s = time.monotonic()
        for number in itertools.count():
            if stopping:
                lines.write("end\n")
                return
            first = number * BLOCK
            fate = sender.send(number, range(first, first + BLOCK))
            lines.write(f"{first} {first + BLOCK} {fate}\n")
            ahead_s = began_s + (first + BLOCK) / float(rate) - time.monotonic()
            if ahead_s > 0:
                time.sleep(ahead_s)
            else:
                began_s -= ahead_s  # an outage is not caught up: the rate stays modest


if __name__ == "__main__":
    main(*sys.argv[1:])
