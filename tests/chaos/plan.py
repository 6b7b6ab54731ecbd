"""The faults of a run and their times: a pure function of a seed.

Rules:

1. One seed is one plan. The real processes may react to it differently each time.
2. Kinds are dealt from a shuffled deck, so that all kinds occur before any occurs often, in short runs too.
3. A pause lasts longer than the consumer group's session and the loaders' lease: a paused process is replaced, and
   continues as a zombie.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

SESSION_S = 6.0
LEASE_S = 5.0
_LONGEST_GAP_S = 5.0
_REST = 0.9
"""The fraction of the run with faults; after a fault in the last tenth only the recovery would follow."""


class Kind(StrEnum):
    WRITER_KILLED = "writer killed"
    WRITER_PAUSED = "writer paused past its session"
    WRITER_RESTARTED = "writer stopped and started"
    WRITER_ADDED = "writer added"
    WRITER_REMOVED = "writer removed"
    LOADER_KILLED = "loader killed"
    LOADER_BEHEADED = "loader killed, its JVM not"
    LOADER_PAUSED = "loader paused past its lease"
    LOADER_RESTARTED = "loader stopped and started"
    S3_KILLED = "S3 server killed"
    S3_CUT = "connections to S3 cut"
    S3_STALLED = "connections to S3 stalled"
    S3_ANSWERS_LOST = "answers of S3 lost"
    S3_SLOW = "creates in S3 delayed"
    BROKER_KILLED = "broker killed"
    KAFKA_CUT = "connections to Kafka cut"
    KAFKA_STALLED = "connections to Kafka stalled"
    OPTIMIZE = "OPTIMIZE by an operator"


_LASTS_S: dict[Kind, tuple[float, float]] = {
    Kind.WRITER_PAUSED: (SESSION_S + 2, SESSION_S + 8),
    Kind.LOADER_PAUSED: (LEASE_S + 2, LEASE_S + 8),
    Kind.S3_KILLED: (0.5, 4),
    Kind.S3_STALLED: (2, 10),
    Kind.S3_ANSWERS_LOST: (2, 6),
    Kind.S3_SLOW: (4, 10),
    Kind.BROKER_KILLED: (1, 8),
    Kind.KAFKA_STALLED: (2, 10),
}
_OFTEN = (
    Kind.WRITER_KILLED,
    Kind.WRITER_PAUSED,
    Kind.WRITER_PAUSED,
    Kind.S3_CUT,
    Kind.S3_ANSWERS_LOST,
    Kind.S3_SLOW,
    Kind.KAFKA_CUT,
    Kind.OPTIMIZE,
)


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    """Seconds after the beginning."""
    kind: Kind
    lasts_s: float
    """Seconds; 0 for faults without a duration."""
    which: int
    """The index of the affected service, modulo their number."""


def plan(seed: int, seconds: float) -> tuple[Fault, ...]:
    rng = random.Random(f"chaos {seed}")  # noqa: S311 - the same plan for the same seed is what is wanted
    # Each kind occurs once before the end of a short run.
    gap_s = min(_LONGEST_GAP_S, seconds * _REST / (len(Kind) + 1))
    faults: list[Fault] = []
    at_s = 0.0
    for kind in _deck(rng):
        at_s += rng.uniform(0.3 * gap_s, 1.6 * gap_s)
        if at_s > seconds * _REST and len(faults) >= len(Kind):
            return tuple(faults)
        lasts_s = rng.uniform(*_LASTS_S[kind]) if kind in _LASTS_S else 0.0
        faults.append(Fault(round(at_s, 2), kind, round(lasts_s, 2), rng.randrange(1000)))
    raise AssertionError


def _deck(rng: random.Random) -> Iterator[Kind]:
    yield from rng.sample(list(Kind), len(Kind))
    while True:
        cards = [*Kind, *_OFTEN]
        rng.shuffle(cards)
        yield from cards
