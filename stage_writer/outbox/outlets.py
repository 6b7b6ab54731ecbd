"""Delivers outboxes in the background: a queue for each chain, and a few threads for all.

Rules:

1. Flushes continue while outboxes wait, up to `MOST_PENDING` per chain, because each marker names them.
2. Failures are retried with growing pauses, for as long as the chain is this writer's. Where another process has
   started to deliver the chain, a writer that still owns it starts over, and one that no longer does leaves it to the
   other.
3. A chain that is left (revoked, or read again) is delivered up to its last seal; the next owner continues from what is
   delivered. Only the end of the process waits for it, for a bounded time.
4. Only what is delivered is deleted. Outboxes that no marker names (of lost claims) are left to `delta-loader clean`:
   after a rewind, a chain that was left does not know which of them a later marker names.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.backoff import Backoff
from common.errors import BrokerError, KafkaDeltaExpressError, StateError, StoreError
from common.kafka.delivering import DeliveryIdentity, FencedError, StartDelivery
from common.kafka.transactions import KafkaTransactions
from common.metrics import Metrics
from common.ports import ObjectStore
from common.settings import Stream
from common.settings.section import Option
from common.spans import TopicPartition
from stage_writer.outbox.delivery import Delivery
from stage_writer.outbox.ports import BackgroundRunner, Outlets

MOST_PENDING = 64
_THREADS = 4
_FENCED_REMEDY = (
    "the writer tries again; if this continues, another process uses that transactional id: make sure that no copy of "
    "this config, with the same writer.group_id and app_id, uses this Kafka cluster"
)


@dataclass(slots=True)
class KafkaOutlet:
    """A `stage_writer.outbox.ports.Outlet`."""

    delivery: Delivery
    start: Callable[[KafkaOutlet], None]
    """Schedules it to be worked on soon, in some thread."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: deque[str] = field(default_factory=deque)
    left: bool = False
    is_running: bool = False
    failing: str = ""
    """The latest error; empty while there is none."""

    def pending(self) -> tuple[str, ...]:
        """The outboxes that a marker must name. Raises BrokerError for too many (rule 1)."""
        with self.lock:
            outboxes = tuple(self.waiting)
        if len(outboxes) >= MOST_PENDING:
            why = self.failing or "it is slow"
            msg = f"{len(outboxes)} outboxes of {self.delivery.identity.partition} wait for Kafka: {why}"
            raise BrokerError(msg, "check that the topics that the stream writes to accept records")
        return outboxes

    def sealed(self, paths: tuple[str, ...]) -> None:
        with self.lock:
            self.waiting.extend(path for path in paths if path not in self.waiting)
            is_first = bool(self.waiting) and not self.is_running
            self.is_running = self.is_running or is_first
        if is_first:
            self.start(self)

    def leave(self) -> None:
        with self.lock:
            self.left = True


class Threads:
    """A `stage_writer.outbox.ports.BackgroundRunner`."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="outbox")
        self._closed = threading.Event()

    def start(self, work: Callable[[], None]) -> None:
        self._pool.submit(work)

    def pause(self, seconds: float) -> None:
        self._closed.wait(seconds)

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


class KafkaOutlets(Outlets):
    def __init__(
        self,
        kafka: Mapping[str, Option],
        group_id: str,
        store: ObjectStore,
        writing: Collection[str],
        *,
        log: FilteringBoundLogger,
        metrics: Metrics,
        begin: StartDelivery = KafkaTransactions.begin,
        runner: BackgroundRunner | None = None,
    ) -> None:
        """``writing`` are the app ids of streams that write to topics; ``runner`` defaults to threads."""
        self._kafka = kafka
        self._group_id = group_id
        self._store = store
        self._writing = frozenset(writing)
        self._log = log
        self._metrics = metrics
        self._begin = begin
        self._runner = runner or Threads()
        self._changed = threading.Condition()
        self._busy = 0
        self._failing: dict[str, KafkaDeltaExpressError] = {}

    def open(self, partition: TopicPartition, stream: Stream, outboxes: tuple[str, ...]) -> KafkaOutlet | None:
        if stream.app_id not in self._writing and not outboxes:
            return None  # undelivered records are still delivered after the stream was changed
        identity = DeliveryIdentity(self._kafka, self._group_id, stream.app_id, partition)
        outlet = KafkaOutlet(
            Delivery(identity, self._store, begin=self._begin, dead_letters_topic=stream.dead_letters_topic),
            self._start,
        )
        outlet.sealed(outboxes)
        return outlet

    def problems(self) -> tuple[KafkaDeltaExpressError, ...]:
        return tuple(self._failing.copy().values())

    def close(self, within_s: float) -> bool:
        with self._changed:
            done = self._changed.wait_for(lambda: self._busy == 0, within_s)
        self._runner.close()
        if not done:
            self._log.warning("records for Kafka topics wait for the next writer")
        return done

    def _start(self, outlet: KafkaOutlet) -> None:
        with self._changed:
            self._busy += 1
        self._runner.start(partial(self._run, outlet))

    def _run(self, outlet: KafkaOutlet) -> None:
        try:
            self._work(outlet)
        except Exception:  # noqa: BLE001 - a bug here must not pass for something that is delivered
            self._log.exception("unexpected exception", part="outbox")
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _work(self, outlet: KafkaOutlet) -> None:
        backoff = Backoff()
        while not self._runner.is_closed:
            with outlet.lock:
                path = outlet.waiting[0] if outlet.waiting else None
                outlet.is_running = path is not None
            if path is None:
                return
            try:
                count = outlet.delivery.deliver(path)
            except FencedError as error:
                if outlet.left:
                    self._failing.pop(str(outlet.delivery.identity.partition), None)
                    return  # rule 2
                problem, remedy = f"another process delivers for the same chain: {error}", _FENCED_REMEDY
            except (BrokerError, StoreError, StateError) as error:
                problem, remedy = error.problem, error.remedy
            else:
                with outlet.lock:
                    outlet.waiting.popleft()
                    outlet.failing = ""
                self._failing.pop(str(outlet.delivery.identity.partition), None)
                backoff.reset()
                self._metrics.add(all_metrics.WRITER_OUTBOX_RECORDS, count, app_id=outlet.delivery.identity.app_id)
                continue
            outlet.failing = problem
            partition = str(outlet.delivery.identity.partition)
            text = f"{partition}: records for Kafka topics wait: {problem}"
            self._failing[partition] = KafkaDeltaExpressError(text, remedy)
            pause_s = backoff.next_s()
            self._log.warning(
                "outbox not delivered, trying again",
                partition=partition,
                problem=problem,
                remedy=remedy,
                retry_in_s=pause_s,
            )
            self._runner.pause(pause_s)
