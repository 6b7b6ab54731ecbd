"""Two or three loaders' leases, of equal, different or overlapping streams, in a hostile world: any
interleaving, pauses, crashes, lost and late requests.

The world and its store are those of tests/simulation; only the lease runs in it. Checked at every
step, and at the end, without faults:

* the highest epoch never falls, and its content never changes: each has one creator;
* at most one contender holds the lease of a stream by its own clock. (A process may be stopped between asking and
  acting, so a commit is not guarded by that. The txn actions do it.);
* a paused holder steps back at its next turn when another one has its streams;
* once all faults have ended, and again when a holder dies, each stream of a living contender is held within two lease
  times of the last request that came late, for any distribution of streams. (A dead holder's renewal that arrives
  just before the lease would be taken over is waited for once more: it looks like a living holder's.)
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from common.metrics import Metrics
from common.stage.leases import Epoch, Grant, LeaseRecord, epoch_of, epoch_path
from delta_loader.lease.holder import LoaderLease
from tests.builders import required
from tests.conftest import examples
from tests.simulation.store import Bucket, SimulatedStore
from tests.simulation.world import Chances, Crash, Process, World, WorldClock

LEASE_S = 15.0
STAGE = "memory://stage"
_SILENT = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(50), processors=[])
_WORLDS = (
    Chances(),
    Chances(refused=0.2, lost_answer=0.2, duplicate=0.2, stall=0.05),
    Chances(crash=0.01, pause=0.03, late=0.9),
    Chances(stall=0.2, pause=0.02, crash=0.002),
)


@dataclass
class Contest:
    """The contenders, by the streams of each, and the records about them."""

    world: World
    streams: Sequence[str]
    bucket: Bucket = field(default_factory=Bucket)
    running: dict[int, tuple[Process, LoaderLease]] = field(default_factory=dict)
    highest: int = 0
    content_of: dict[Epoch, bytes] = field(default_factory=dict)
    holders: set[str] = field(default_factory=set)
    started: int = 0

    def turn(self) -> None:
        """One step of the world; dead contenders are restarted now and then."""
        for role in range(len(self.streams)):
            process = self.running[role][0] if role in self.running else None
            if (process is None or not process.alive) and self.world.rng.random() < 0.02:
                self.start(role)
        self.step()

    def step(self) -> bool:
        has_more = self.world.step()
        self.check()
        return has_more

    def start(self, role: int) -> None:
        self.started += 1
        process = Process(f"loader-{role}#{self.started}")
        store = SimulatedStore(self.world, self.bucket, STAGE)
        clock, streams = WorldClock(self.world), {app_id: [app_id] for app_id in self.streams[role]}
        lease = LoaderLease(store, clock, process.name, LEASE_S, streams, log=_SILENT, metrics=Metrics())
        self.running[role] = (process, lease)
        lifetime = self.world.rng.choice([3, 50, 10_000])

        def run() -> None:
            try:
                for step in itertools.count():
                    if step >= lifetime and not self.world.faults_ended:
                        break
                    if step == 1:
                        lease.contend()
                    self.world.sleep_s(lease.step())
                lease.release()
            except Crash:
                return
            process.alive = False

        self.world.spawn(process, run)

    def check(self) -> None:
        records = {epoch: data for path, (data, _) in self.bucket.objects.items() if (epoch := self.epoch(path))}
        highest = max(records, default=Epoch(0))
        assert highest >= self.highest, "the highest epoch fell"
        if highest:
            assert self.content_of.setdefault(highest, records[highest]) == records[highest], (
                "an epoch has two creators"
            )
        self.highest = highest
        held = [(stream, process.name) for process, lease in self.living() for stream in lease.held()]
        assert len({stream for stream, _ in held}) == len(held), f"{held} hold the lease at the same time"
        self.holders.update(name for _, name in held)

    def living(self) -> list[tuple[Process, LoaderLease]]:
        return [entry for entry in self.running.values() if entry[0].alive]

    def unheld(self) -> set[str]:
        """Streams that a living contender could load and none holds."""
        wanted = {stream for role, entry in self.running.items() if entry[0].alive for stream in self.streams[role]}
        return wanted.difference(*(lease.held() for _, lease in self.living()))

    @staticmethod
    def epoch(path: str) -> Epoch | None:
        return epoch_of(path.removeprefix(f"{STAGE}/"))

    def end_faults(self) -> None:
        """Ends all faults, lets dying contenders end, and runs all contenders."""
        self.world.end_faults()
        for _ in range(200):
            self.step()
        for role in range(len(self.streams)):
            if role not in self.running or not self.running[role][0].alive:
                self.start(role)

    def holder(self) -> tuple[Process, LoaderLease] | None:
        return next((entry for entry in self.living() if entry[1].held()), None)

    def wait_for_takeover(self) -> None:
        since_ms = self.world.now_ms
        while self.unheld():
            if self.world.has_late_requests:
                since_ms = self.world.now_ms
            assert self.step(), "nothing more happens"
            assert self.world.now_ms - since_ms < 2 * LEASE_S * 1000, "no contender took over within two lease times"


def contest(seed: int, streams: Sequence[str], steps: int) -> Contest:
    contest = Contest(World(seed, _WORLDS[seed % len(_WORLDS)]), streams)
    for _ in range(steps):
        contest.turn()
    return contest


@settings(max_examples=examples(0.6))
@given(
    seed=st.integers(0, 2**32),
    streams=st.lists(st.sampled_from(["a", "b", "ab", "bc", "abc"]), min_size=2, max_size=3),
    steps=st.integers(50, 1500),
)
def test_one_loader_holds_at_a_time_and_another_always_takes_over(seed: int, streams: list[str], steps: int) -> None:
    run = contest(seed, streams, steps)
    run.end_faults()
    run.wait_for_takeover()
    holder = required(run.holder())
    run.world.crash(holder[0])
    run.wait_for_takeover()
    for process, _ in run.running.values():
        if process.alive:
            run.world.crash(process)


def test_worlds_are_hostile_enough() -> None:
    """A check of the check: the lease changes hands often, by death, by release and after pauses."""
    runs = [contest(seed, ["a"] * 3, 1500) for seed in range(12)]
    assert sum(len(run.holders) for run in runs) > 24
    assert sum(LeaseRecord.from_bytes(data, 1.0).released for run in runs for data in run.content_of.values()) > 5
    faults = {fault.name for run in runs for fault, count in run.world.faults.items() if count}
    assert {"CRASH", "PAUSE", "STALL", "REFUSED", "LOST_ANSWER", "LATE_REQUEST", "DUPLICATE_REQUEST"} <= faults


def test_dead_holder_s_late_renewal_is_waited_for_once_more() -> None:
    run = without_faults()
    run.world.end_faults()  # no contender reaches the end of its lifetime
    dead, _ = run.running[0]
    run.start(1)
    for _ in range(100):
        run.step()
    run.world.crash(dead)
    epoch = Epoch(run.highest + 1)
    grants = (Grant(dead.name, frozenset("a"), LEASE_S, epoch),)
    renewal = LeaseRecord(dead.name, released=False, lease_s=LEASE_S, created_ms=0, grants=grants)
    path = f"{STAGE}/{epoch_path(epoch)}"
    soon_ms = run.world.now_ms + int(LEASE_S / 2 * 1000)  # the lease runs out after a third of it, or later
    while run.world.now_ms < soon_ms:
        run.step()
    assert run.holder() is None
    run.bucket.objects[path] = (renewal.to_bytes(), run.world.now_ms)
    arrived_ms = run.world.now_ms
    run.wait_for_takeover()
    assert run.holder() == run.running[1]
    assert run.world.now_ms - arrived_ms >= LEASE_S * 1000
    run.world.crash(run.running[1][0])


def test_paused_holder_steps_back_at_its_next_turn() -> None:
    run = without_faults()
    sleeper, lease = run.running[0]
    run.start(1)
    sleeper.paused_until_ms = run.world.now_ms + 120_000
    while run.world.now_ms < sleeper.paused_until_ms:
        run.step()
    other, its_lease = run.running[1]
    assert its_lease.held()
    assert not lease.held()
    for _ in range(100):
        run.step()
    assert its_lease.held()
    assert lease.holder == other.name
    for process in (sleeper, other):
        run.world.crash(process)


def without_faults() -> Contest:
    """A world without faults where contender 0 holds the lease."""
    chances = Chances()
    for chance in fields(Chances):
        if isinstance(chance.default, float):
            chances = replace(chances, **{chance.name: 0.0})  # type: ignore[arg-type]
    run = Contest(World(1, chances), ["a", "a"])
    run.start(0)
    run.wait_for_takeover()
    return run
