"""A world that decides about time, order and failure: one scheduler over cooperative tasks, all from one seed.

Rules:

1. A task runs until it asks the world for an *effect* (a call to the store, the log, Kafka) or for time. Then the world
   chooses the next task, and how the effect ends; so anything can happen between any two steps of any process.
2. Nothing else is random and nothing else is a clock. The same seed gives the same history, step by step.
3. A process can crash (its tasks end where they are, and a pending request may still arrive, later), be paused for any
   time, and be restarted.
4. After `end_faults` no fault happens; the system has to finish by itself in this quiet phase.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from random import Random
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

import structlog
from greenlet import greenlet
from structlog.typing import FilteringBoundLogger

from common.errors import KafkaDeltaExpressError, StoreError

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

Result = TypeVar("Result")

SILENT = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(50), processors=[])
"""The log of processes that appear in the world's trace."""
_ROUNDING = 1e-6
"""For milliseconds computed from seconds: 0.29 s is 290 of them, and not 291."""


_CLAIM, _COMMIT = "create done/", "commit to "
_ORIGIN = "create begin/", "write begin/"
_DECIDES = (_CLAIM, _COMMIT, "copy ")
"""Requests that decide what is staged or loaded, and the requests right before them."""


class Fault(StrEnum):
    CRASH = "crash"
    PAUSE = "pause"
    STALL = "request stalls"
    REFUSED = "request refused"
    LOST_ANSWER = "answer lost"
    LATE_REQUEST = "request arrives after its sender's end"
    GIVEN_UP = "request given up arrives later"
    DUPLICATE_REQUEST = "request arrives twice"
    CLOCK_JUMP = "clock jumps"
    REDELIVERY = "record delivered again"
    REBALANCE = "rebalance"
    EXPELLED = "expelled from the group"
    REWIND = "operator rewinds"
    SKIP = "operator skips"
    FOREIGN_COMMIT = "foreign commit comes between"
    RECREATED = "topic deleted and created again"
    BROKEN_TABLE = "a table does not work"
    REGISTRY = "registry away"
    MACHINE = "machine stops"
    ALTERED = "constraint comes or goes"
    SIGN_LOST = "sign lost"
    UNDELIVERED = "transactions away"
    NO_CONTROL = "control topic away"
    EDITED = "config edited"
    RESTARTED = "operator begins a new chain"
    WEEKEND = "nothing runs for days"
    RESTORED = "table put back"
    CLEANED = "log of a table cleaned"
    EXPIRED = "txn actions expired"
    HOURS = "hours pass"
    AWAY = "store away for long"
    FULL = "disk full"
    TORN = "object torn"
    CLEAN_UP = "clean-up runs"
    VACUUM = "VACUUM of others"
    OPTIMIZE = "OPTIMIZE of others"
    REPLACED = "table replaced"
    ACCEPTED = "operator accepts a rollback"
    RETENTION = "Kafka's retention"
    PARTITION_ADDED = "partition added"
    TRANSACTION = "transaction aborted or committed late"
    OLD_RELEASE = "process of an older release"
    REPLAYED = "operator replays"
    PAUSED = "operator pauses"
    SKEWED = "process with a clock of its own"


class Crash(BaseException):
    """The process of a task has ended."""


@dataclass(slots=True)
class Process:
    name: str
    alive: bool = True
    paused_until_ms: int = 0
    last_heartbeat_ms: int = 0
    drift_ms: int = 0
    """How far its machine's clock is ahead."""


@dataclass(slots=True)
class Effect:
    name: str
    call: Callable[[], object]
    changes: bool
    """Whether it changes anything, so that it matters if it arrives late or twice."""
    sent_ms: int


@dataclass(slots=True)
class Task:
    process: Process
    strand: greenlet
    wake_at_ms: int = 0
    effect: Effect | None = None
    is_contested: bool = False
    """Whether its claim waits until another process makes the same one, so that they meet at the store."""
    was_contested: bool = False
    """Whether a claim of this job already was contested: once is enough."""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Chances:
    """How often each thing happens, for each decision where it can."""

    steps: tuple[int, ...] = (400, 400, 400, 1200)
    """Until faults end, at most: most rules break in a few, and some only in many. One is chosen."""
    shuffle: float = 0.001
    """The group's partitions move to other members, though its members stay the same."""
    claim_stall: float = 0.01
    """The one request that decides, stalling."""
    commit_stall: float = 0.01
    """The same of a loader's, until another loader may have its lease."""
    rival: float = 0.6
    """Of the claims: the group gives the partition to another member meanwhile, and both claims meet at the store."""
    refused: float = 0.02
    lost_answer: float = 0.02
    duplicate: float = 0.02
    origin_duplicate: float | None = None
    """The same of requests that say where a chain begins, where it differs."""
    late: float = 0.5
    given_up: float = 0.005
    """The sender gets no answer and does not wait; the request still arrives, at any later time."""
    operator: float = 0.0
    """Someone repairs an intact partition."""
    foreign: float = 0.1
    """Of the loader's commits: another writer of the table came first."""
    recreated: float = 0.0
    """For each step: the topic is deleted, and created again with other records at the same offsets.

    Every other time those are there at once, so that clients continue reading as if nothing had happened.
    """
    crash: float = 0.003
    pause: float = 0.004
    stall: float = 0.01
    clock_jump: float = 0.001
    broken_table: float = 0.005
    """Of a stream with several tables, for each step: one of them does not work for a while."""
    altered: float = 0.005
    """For each step: a table's constraint is added, or dropped."""
    edited: float = 0.0
    """For each step, in worlds of edits: someone edits a config."""
    edits: tuple[str, ...] = ()
    """The fields of a config that are edited there; some of all by the seed where none are named."""
    surroundings: tuple[str, ...] = ()
    """The faults of hostile surroundings; some of all by the seed where none are named."""
    tended: float = 0.0
    """For each step, there: someone else does something with a table."""
    weekend: float = 0.0
    """For each step, there: nothing runs for days, and others use the tables meanwhile."""
    sign_lost: float = 0.4
    """Of the writers' notifications in the control topic, for each loader; in the quiet phase too."""
    registry: float = 0.005
    """For each batch: the schema registry does not answer for a while."""
    replayed: float = 0.012
    """For each step, in worlds of replays: an operator replays a range, or dead letters."""
    undelivered: float = 0.005
    """For each step, where tasks write to topics: Kafka commits no transactions for a while, so that outboxes wait."""


OPERATED = Chances(operator=0.01, claim_stall=0.1, shuffle=0.005, foreign=0.2)
"""Operators who repair intact partitions."""

OPERATED_EARLY = Chances(steps=(1200,), operator=0.02, claim_stall=0.2, stall=0.05, shuffle=0.003)
"""Operators who come before the first marker, and slow claims."""

FIRST_LOADS = Chances(
    steps=(1200,),
    operator=0.05,
    commit_stall=0.9,
    claim_stall=0.02,
    crash=0.001,
    pause=0.001,
    rival=0.1,
    refused=0.005,
    lost_answer=0.005,
    shuffle=0.01,
    late=0.9,
    given_up=0.02,
)
"""Operators who want the records before a chain while its first load is in progress."""

LATE_ORIGINS = Chances(
    operator=0.05, origin_duplicate=0.9, claim_stall=0.3, commit_stall=0.5, stall=0.05, shuffle=0.003
)
"""Operators who move origins before the first load, and whose requests for that arrive twice."""

MANY_REPAIRS = Chances(operator=0.05, claim_stall=0.1, stall=0.05, shuffle=0.005, lost_answer=0.05, undelivered=0.02)
"""Operators who repair all the time, and so at once."""

MACHINES_STOP = Chances(crash=0.02, late=0.2, rival=0.1)
"""Processes that die and are restarted, often because their machine stopped."""

CONTESTED = Chances(foreign=0.7, altered=0.03, crash=0.001, pause=0.001)
"""Tables that others write to all the time, so that the first commit of a load is visible when it plans again."""

UNDELIVERED = Chances(operator=0.02, undelivered=0.02, claim_stall=0.1, shuffle=0.005, foreign=0.2)
"""Operators who repair chains with undelivered records for topics."""

MANY_REPLAYS = Chances(replayed=0.1, foreign=0.5, commit_stall=0.1, clock_jump=0.005)
"""Operators who replay all the time, over tables that others write to, by clocks that jump."""

LATE_CLAIMS = Chances(claim_stall=0.4, shuffle=0.01, refused=0.0, crash=0.0005, pause=0.0005)
LATE_COMMITS = Chances(commit_stall=0.4)
"""Loaders that commit when another one has their lease."""
SIGNS_LOST = Chances(sign_lost=0.9)
"""An unreliable control topic."""
REGISTRY_AWAY = Chances(registry=0.05)
STALLS = Chances(stall=0.2)
"""Slow requests, so that others come between them."""
BROKEN_TABLES = Chances(broken_table=0.03, foreign=0.0)
"""Of several tables one does not work, most of the time."""
RECREATED = Chances(recreated=0.003, pause=0.01, claim_stall=0.1, shuffle=0.005)
"""A topic that is sometimes recreated."""
UNSTEADY = Chances(recreated=0.02, pause=0.01, stall=0.05, claim_stall=0.5, shuffle=0.005, crash=0.001)
"""A topic that is recreated all the time."""

PROFILES = (
    Chances(),
    LATE_CLAIMS,
    Chances(refused=0.1, lost_answer=0.1, duplicate=0.1, claim_stall=0.2, shuffle=0.005),
    Chances(crash=0.01, pause=0.01, late=0.9),
    Chances(pause=0.03, crash=0.0, refused=0.0, claim_stall=0.1),
    Chances(given_up=0.15, duplicate=0.15, claim_stall=0.2, shuffle=0.02, refused=0.0, crash=0.001, pause=0.0005),
    OPERATED,
    RECREATED,
)
"""Profiles: a bit of everything, late claims in a restless group, a bad network, machines that die, machines that stop,
requests that arrive unexpectedly late, operators."""


class Dice(Random):
    """The same choices as those of `random.Random`, in half of its time: they are made several times at each step."""

    def below(self, count: int) -> int:
        """One of ``range(count)``."""
        if count < 1:
            raise ValueError("nothing to choose from")
        bits = count.bit_length()
        number = self.getrandbits(bits)
        while number >= count:
            number = self.getrandbits(bits)
        return number

    def choice(self, seq: SupportsLenAndGetItem[Result]) -> Result:
        return seq[self.below(len(seq))]


@dataclass(slots=True)
class World:
    seed: int
    chances: Chances = field(default_factory=Chances)
    rng: Dice = field(init=False)
    now_ms: int = 1_700_000_000_000
    drift_ms: int = 0
    faults: Counter[Fault] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    faults_ended: bool = False
    is_late: bool = False
    """Whether the request that arrives now is one that its sender no longer waits for."""
    sent_ms: int = 0
    """When the request was sent that arrives now."""
    find_rival: Callable[[Process], bool] | None = None
    """Gives another process the partition that a process is about to claim; returns whether there is another one."""
    is_away: Callable[[Process, Effect], bool] | None = None
    """Whether a request does not reach its server now."""
    crashes: list[str] = field(default_factory=list)
    """Errors that no service expects, wherever one was caught."""
    log: FilteringBoundLogger = field(init=False)
    """The log of simulated processes; unexpected errors in it are kept."""
    _tasks: list[Task] = field(default_factory=list)
    _by_strand: dict[greenlet, Task] = field(default_factory=dict)
    _late: list[tuple[int, Effect]] = field(default_factory=list)
    _scheduler: greenlet | None = None

    def __post_init__(self) -> None:
        self.rng = Dice(self.seed)
        wrapper = structlog.make_filtering_bound_logger(logging.ERROR)
        self.log = structlog.wrap_logger(None, wrapper_class=wrapper, processors=[self._logged])

    # For tasks.

    def effect(self, name: str, call: Callable[[], Result], *, changes: bool = False) -> Result:
        """Ask for a request to be carried out; raises StoreError when it is refused or its answer is lost."""
        task = self._current()
        task.effect = Effect(name, call, changes, self.now_ms)
        if name.startswith(_CLAIM):
            self._meet(task, name)
        outcome = self._switch()
        if isinstance(outcome, KafkaDeltaExpressError):
            raise outcome
        return cast("Result", outcome)

    def sleep_s(self, seconds: float) -> None:
        task = self._current()
        task.wake_at_ms = self.now_ms + ceil(seconds * 1000 - _ROUNDING)  # down to 0, a loop would never end
        self._switch()

    @property
    def process(self) -> Process:
        return self._current().process

    def note(self, sentence: str) -> None:
        self.trace.append(f"{self.now_ms - 1_700_000_000_000:>9} ms  {sentence}")

    def _logged(self, _logger: object, _method: str, event: structlog.typing.EventDict) -> NoReturn:
        info = event.get("exc_info")
        error = info if isinstance(info, BaseException) else sys.exc_info()[1] if info else None
        if error is not None and not isinstance(error, KafkaDeltaExpressError):
            self.crashed(error)
        raise structlog.DropEvent

    def crashed(self, error: BaseException) -> None:
        """A service met an unexpected error."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        self.crashes.append(f"unexpected {error!r} in {last.filename}:{last.lineno}")

    # For the history.

    def spawn(self, process: Process, run: Callable[[], None]) -> Task:
        task = Task(process, greenlet(run, self._scheduler or greenlet.getcurrent()))
        self._tasks.append(task)
        self._by_strand[task.strand] = task
        return task

    def crash(self, process: Process) -> None:
        self.note(f"{process.name} dies")
        process.alive = False
        for task in self._tasks:
            if task.process is process and not task.ended:
                if not self.faults_ended and task.effect and task.effect.changes and self._chance(self.chances.late):
                    self.faults[Fault.LATE_REQUEST] += 1
                    self._late.append((self._much_later_ms(), task.effect))
                self._end(task)
                del self._by_strand[task.strand]
        self._tasks = [task for task in self._tasks if not task.ended]

    def close(self) -> None:
        """End all tasks: an unfinished one would keep its whole world in memory."""
        for task in self._tasks:
            self._end(task)
        self._tasks.clear()
        self._by_strand.clear()

    def wake_all(self) -> None:
        """End all stalls."""
        for task in self._tasks:
            if task.effect is not None and not task.is_contested:
                task.wake_at_ms = min(task.wake_at_ms, self.now_ms)

    def end_faults(self) -> None:
        """No more faults; late requests arrive now."""
        self.faults_ended = True
        self.note("all faults end")
        self.wake_all()
        due_ms = self.now_ms + 60_000  # pending requests arrive now, or in the first minute of the quiet phase
        times_ms = [self.rng.choice([self.now_ms, self.rng.randint(self.now_ms, due_ms)]) for _ in self._late]
        self._late = [(time_ms, effect) for time_ms, (_, effect) in zip(times_ms, self._late, strict=True)]
        self._deliver_late()

    def leap(self, duration_ms: int) -> bool:
        """Let much time pass while all processes stand still; False while one of them claims or commits."""
        if any(task.effect is not None and task.effect.name.startswith(_DECIDES) for task in self._tasks):
            return False
        until_ms = self.now_ms + duration_ms
        for due_ms in sorted(time_ms for time_ms, _ in self._late if time_ms <= until_ms):
            self.now_ms = max(self.now_ms, due_ms)
            self._deliver_late()
        self.now_ms = until_ms
        return True

    def step(self) -> bool:
        """Let one thing happen; False when nothing is left that could."""
        self._scheduler = greenlet.getcurrent()
        self._deliver_late()
        ready = self._ready()
        if not ready:
            if not self._tasks:
                return False
            if self.faults_ended:
                self.now_ms = min([task.wake_at_ms for task in self._tasks])
            else:
                self.now_ms = min([max(task.wake_at_ms, task.process.paused_until_ms) for task in self._tasks])
            self._deliver_late()
            ready = self._ready()
        self.now_ms += self.rng.below(30)
        if not self.faults_ended and self._chance(self.chances.clock_jump):
            self.faults[Fault.CLOCK_JUMP] += 1
            self.drift_ms = self.rng.randrange(-3_600_000, 3_600_000)
        self._resume(self.rng.choice(ready))
        return True

    def steps(self) -> range:
        """Of the phase with faults."""
        return range(self.rng.randrange(100, self.rng.choice(self.chances.steps)))

    @property
    def has_late_requests(self) -> bool:
        """Whether there are pending requests whose senders no longer wait."""
        return bool(self._late)

    # Internals.

    def _ready(self) -> list[Task]:
        now_ms = self.now_ms
        awake = [task for task in self._tasks if task.wake_at_ms <= now_ms]
        if self.faults_ended:
            return awake
        return [task for task in awake if task.process.paused_until_ms <= now_ms]

    def _resume(self, task: Task) -> None:
        if not self.faults_ended and self._happens(task):
            return
        task.process.last_heartbeat_ms = self.now_ms
        effect = task.effect
        if effect is not None and not self.faults_ended and self._is_delayed(task, effect):
            return
        task.effect, task.is_contested = None, False
        answer = None if effect is None else self._carry_out(task.process, effect)
        strand = task.strand
        strand.parent = greenlet.getcurrent()
        if strand:
            strand.switch(answer)
        else:
            strand.switch()
        if strand.dead:
            task.ended = True
            self._tasks.remove(task)
            del self._by_strand[strand]

    def _happens(self, task: Task) -> bool:
        """Whether its process crashes or is paused instead."""
        if self._chance(self.chances.crash):
            self.faults[Fault.CRASH] += 1
            self.crash(task.process)
            return True
        if self._chance(self.chances.pause):
            self.faults[Fault.PAUSE] += 1
            task.process.paused_until_ms = self.now_ms + self.rng.choice([1_000, 12_000, 20_000, 60_000])
            self.note(f"{task.process.name} is paused for {task.process.paused_until_ms - self.now_ms} ms")
            return True
        return False

    def _is_delayed(self, task: Task, effect: Effect) -> bool:
        """Whether its request arrives later."""
        if self._chance(self._stall(effect)):
            # One thread stalls while its process goes on: its request arrives long after it was right.
            self.faults[Fault.STALL] += 1
            task.wake_at_ms = self.now_ms + self.rng.choice([500, 5_000, 15_000, 60_000])
            return True
        if self._is_rivalled(task):
            task.wake_at_ms, task.is_contested = self.now_ms + 60_000, True
            return True
        return False

    def _carry_out(self, process: Process, effect: Effect) -> object:
        if not self.faults_ended and self.is_away is not None and self.is_away(process, effect):
            return StoreError(f"{effect.name}: the store is away", "")
        if not self.faults_ended and self._chance(self.chances.refused):
            self.faults[Fault.REFUSED] += 1
            self.note(f"{process.name}: {effect.name}: refused")
            return StoreError(f"{effect.name} was refused", "")
        if effect.changes and not self.faults_ended and self._chance(self.chances.given_up):
            self.faults[Fault.GIVEN_UP] += 1
            self.note(f"{process.name}: {effect.name}: given up, and under way")
            self._late.append((self._much_later_ms(), effect))
            return StoreError(f"{effect.name} took too long", "")
        self.sent_ms = effect.sent_ms
        try:
            answer = effect.call()
        except KafkaDeltaExpressError as error:
            return error  # it is raised at the sender
        if effect.changes:
            self.note(f"{process.name}: {effect.name}: {type(answer).__name__}")
        if effect.changes and not self.faults_ended:
            if self._chance(self._duplicate(effect)):
                self.faults[Fault.DUPLICATE_REQUEST] += 1
                self._late.append((self._much_later_ms(), effect))
            if self._chance(self.chances.lost_answer):
                self.faults[Fault.LOST_ANSWER] += 1
                self.note(f"{process.name} does not hear of it")
                return StoreError(f"the answer to {effect.name} was lost", "")
        return answer

    def _much_later_ms(self) -> int:
        """When a request arrives whose sender no longer waits."""
        return self.now_ms + self.rng.randrange(self.rng.choice([500, 10_000, 60_000, 300_000, 3_600_000]))

    def _deliver_late(self) -> None:
        if not self._late:
            return
        due = [item for item in self._late if item[0] <= self.now_ms]
        self._late = [item for item in self._late if item[0] > self.now_ms]
        for _, effect in due:
            self._arrive(effect)

    def _arrive(self, effect: Effect) -> None:
        self.note(f"late: {effect.name}")
        self.is_late, self.sent_ms = True, effect.sent_ms
        with suppress(KafkaDeltaExpressError):  # its sender does not wait for the answer
            effect.call()
        self.is_late = False

    def _stall(self, effect: Effect) -> float:
        if effect.name.startswith(_CLAIM):
            return self.chances.claim_stall
        return self.chances.commit_stall if effect.name.startswith(_COMMIT) else self.chances.stall

    def _duplicate(self, effect: Effect) -> float:
        own = self.chances.origin_duplicate if effect.name.startswith(_ORIGIN) else None
        return self.chances.duplicate if own is None else own

    def _meet(self, rival: Task, claim: str) -> None:
        """The claim that waited for this one goes on: which of the two comes first is the world's choice."""
        for task in self._tasks:
            if task.is_contested and task is not rival and task.effect is not None and task.effect.name == claim:
                task.wake_at_ms, task.is_contested = self.now_ms, False

    def _is_rivalled(self, task: Task) -> bool:
        """Whether another process is given the partition that this one is about to claim."""
        is_claim = task.effect is not None and task.effect.name.startswith(_CLAIM)
        if not is_claim or task.was_contested or self.find_rival is None or not self._chance(self.chances.rival):
            return False
        task.was_contested = True
        return self.find_rival(task.process)

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _current(self) -> Task:
        task = self._by_strand[greenlet.getcurrent()]
        if task.ended:
            raise Crash  # while ending; nothing that it does reaches the world
        return task

    def _switch(self) -> object:
        assert self._scheduler is not None
        return self._scheduler.switch()

    def _end(self, task: Task) -> None:
        task.ended = True
        if not task.strand.dead:
            task.strand.parent = greenlet.getcurrent()
            if task.strand:  # has started
                _throw(task.strand)


def _throw(strand: greenlet) -> None:
    """End a task's thread where it is; nothing that it does while ending has an effect."""
    for _ in range(100):
        if strand.dead:
            return
        try:
            strand.throw(Crash())
        except Crash:
            return


class WorldClock:
    def __init__(self, world: World, process: Process | None = None) -> None:
        self._world = world
        self._process = process

    def monotonic_s(self) -> float:
        """Seconds since the beginning; it never jumps."""
        return self._world.now_ms / 1000

    def wall_ms(self) -> int:
        own_ms = 0 if self._process is None or self._world.faults_ended else self._process.drift_ms
        return self._world.now_ms + self._world.drift_ms + own_ms

    def sleep_s(self, seconds: float) -> None:
        self._world.sleep_s(seconds)
