"""Whether the loader starts at once, later or not at all; several streams are checked at the same time."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from threading import Event, Lock

import pytest
import structlog
from fsspec.implementations.memory import MemoryFileSystem
from structlog.testing import capture_logs

from common.errors import ConfigError, StoreError, StoreRefusedError, UnsafeStoreError
from common.metrics import Metrics
from common.storage.store import FsspecStore
from delta_loader.check_result import Check, Level
from delta_loader.checks.readiness import MOST, ReadinessCheck, SideBySide

FINE = Check("stage", Level.OK, "works")
AWAY = Check("stage", Level.ERROR, "the stage does not answer", "start it", away=True)
UNFIT = Check("columns", Level.ERROR, "orders: the column id is not in it", "ALTER TABLE", "orders")


class World:
    """The results of successive scans; the last one repeats."""

    def __init__(self, *results: Sequence[Check], proofs: Sequence[StoreError | None] = (None,)) -> None:
        self.results = list(results)
        self.proofs = list(proofs)
        self.pauses_s: list[float] = []
        self.seen: list[str | None] = []
        self.stop_after = 99
        self.stream: list[Check] = []
        self.metrics = Metrics()
        self.readiness_check = ReadinessCheck(
            ["orders", "returns"],
            scan=lambda: self.results.pop(0) if len(self.results) > 1 else self.results[0],
            check_stream=lambda app_id: [check for check in self.stream if check.app_id == app_id],
            prove=self._prove,
            log=structlog.get_logger(),
            metrics=self.metrics,
        )

    def _prove(self) -> None:
        error = self.proofs.pop(0) if len(self.proofs) > 1 else self.proofs[0]
        if error is not None:
            raise error

    def problems(self) -> list[str]:
        return list(self.readiness_check.problems)

    def begin(self, *, once: bool = False) -> None:
        def wait(seconds: float) -> bool:
            self.pauses_s.append(seconds)
            self.seen.append(self.readiness_check.away)
            return len(self.pauses_s) >= self.stop_after

        self.readiness_check.begin(once=once, wait=wait)


def test_unreachable_store_is_waited_for_and_logged() -> None:
    world = World([AWAY], [AWAY], [FINE], proofs=[StoreError("Spark cannot create", ""), None])
    with capture_logs() as logs:
        world.begin()
    assert world.pauses_s == [1.0, 2.0, 4.0]
    assert world.seen == ["the stage does not answer → start it"] * 2 + ["Spark cannot create"]
    assert world.readiness_check.away is None
    assert world.problems() == []
    problems = [line["problem"] for line in logs if line["event"] == "waiting for a store"]
    assert problems == ["the stage does not answer"] * 2 + ["Spark cannot create"]
    failed_checks = [line["problem"] for line in logs if line["event"] == "preflight"]
    assert failed_checks == ["the stage does not answer"], "once, however often it is tried again"


def test_stop_ends_the_wait() -> None:
    world = World([AWAY])
    world.stop_after = 8
    world.begin()
    assert world.pauses_s[-1] == 30.0
    assert world.readiness_check.away is not None


def test_single_pass_raises_instead_of_waiting() -> None:
    with pytest.raises(StoreError, match="does not answer") as caught:
        World([AWAY]).begin(once=True)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("once", [True, False])
def test_refused_or_unsafe_store_ends_the_start_with_exit_code_2(*, once: bool) -> None:
    refused = Check("stage", Level.ERROR, "may not create", "check the credentials")
    for world in (
        World([refused]),
        World([FINE], proofs=[StoreRefusedError("no rights", "")]),
        World([FINE], proofs=[UnsafeStoreError("ignores conditions", "")]),
    ):
        with pytest.raises((ConfigError, UnsafeStoreError)) as caught:
            world.begin(once=once)
        assert caught.value.exit_code == 2
        assert world.pauses_s == []


def test_incompatible_streams_do_not_prevent_the_start() -> None:
    world = World([UNFIT, Check("table", Level.ERROR, "returns: no", "", "returns")])
    world.begin()
    assert len(world.problems()) == 2


def test_unreachable_table_of_a_stream_does_not_delay_the_others() -> None:
    world = World([replace(UNFIT, away=True)])
    world.begin()
    assert (world.pauses_s, len(world.problems())) == ([], 1)


def test_stream_with_a_warning_is_ready() -> None:
    warning = Check("vacuum", Level.WARNING, "orders: its files are kept for 1 day", "raise it", "orders")
    world = World([FINE, warning])
    world.begin()
    assert world.problems() == []


def test_incompatible_stream_is_a_problem_until_it_is_fixed() -> None:
    world = World([FINE, UNFIT])
    with capture_logs() as logs:
        world.begin()
        problems = [(line["log_level"], line["problem"]) for line in logs if line["event"] == "preflight"]
        assert problems == [("error", UNFIT.message)]
        assert world.problems() == ["not ready to load: orders: the column id is not in it → ALTER TABLE"]
        world.stream = [UNFIT]
        world.readiness_check.check_again()
        assert len(world.problems()) == 1
        world.stream = [replace(UNFIT, message="orders: the column at is not in it")]
        world.readiness_check.check_again()
        assert world.problems() == ["not ready to load: orders: the column at is not in it → ALTER TABLE"]
        world.stream = [Check("columns", Level.OK, "fine", "", "orders")]
        world.readiness_check.check_again()
    assert world.problems() == []
    assert [line["app_id"] for line in logs if line["event"] == "stream is ready to load"] == ["orders"]


class HttpError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"status {code}")
        self.code = code


class NoCredentialsError(Exception):
    """Botocore's, by its name."""


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (PermissionError("Access Denied"), True),
        (FileNotFoundError("The specified bucket does not exist"), True),
        (NoCredentialsError(), True),
        (HttpError(403), True),
        (HttpError(503), False),
        (ConnectionRefusedError(), False),
        (TimeoutError(), False),
    ],
)
def test_refused_store_is_distinguished_from_an_unreachable_one(
    error: Exception, *, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    monkeypatch.setattr(MemoryFileSystem, "find", fail)
    with pytest.raises(StoreError) as caught:
        list(store.list("done"))
    assert isinstance(caught.value, StoreRefusedError) is refused


def test_incompatible_streams_are_a_metric() -> None:
    world = World([FINE, UNFIT])
    world.readiness_check.begin(once=True, wait=lambda _: False)
    assert 'delta_loader_unfit{app_id="orders"} 1.0' in world.metrics.exposition().decode()
    assert 'delta_loader_unfit{app_id="returns"} 0.0' in world.metrics.exposition().decode()
    world.readiness_check.check_again()
    assert 'delta_loader_unfit{app_id="orders"} 0.0' in world.metrics.exposition().decode()


def fine(app_id: str) -> Check:
    return Check("table", Level.OK, f"{app_id} is fine", app_id=app_id)


@pytest.mark.timeout(300)  # both loops below wait for a condition that a regression would never meet
def test_hanging_store_of_one_stream_does_not_delay_other_checks() -> None:
    """Even when more streams hang than may run at once; a hanging stream is not checked again."""
    answers, asked = Event(), list[str]()
    hanging = [f"s{number}" for number in range(MOST + 1)]

    def check_stream(app_id: str) -> list[Check]:
        asked.append(app_id)
        if app_id in hanging:
            answers.wait()
        return [fine(app_id)]

    checks = SideBySide(within_s=0.2)
    try:
        results = checks(check_stream, [*hanging, "orders"])
        while results["orders"] != (fine("orders"),):  # on a machine so busy that it is late, too
            results = checks(check_stream, [*hanging, "orders"])
        assert list(results) == [*hanging, "orders"]
        for app_id in hanging:
            (silent,) = results[app_id]
            assert (silent.level, silent.away, silent.app_id) == (Level.ERROR, True, app_id)
            assert "did not respond" in silent.message
        checks(check_stream, hanging)
        assert sorted(set(asked)) == sorted([*hanging, "orders"])
        assert len(asked) - asked.count("orders") == len(hanging)
    finally:
        answers.set()
    while checks(check_stream, hanging)[hanging[0]] != (fine(hanging[0]),):
        pass


def test_checks_run_concurrently_and_return_in_order() -> None:
    """Each check waits until the last one has started."""
    app_ids = [f"s{number}" for number in range(MOST)]
    last = Event()

    def check_stream(app_id: str) -> list[Check]:
        if app_id == app_ids[-1]:
            last.set()
        last.wait()
        return [fine(app_id)]

    assert SideBySide(within_s=600.0)(check_stream, app_ids) == {app_id: (fine(app_id),) for app_id in app_ids}


def test_only_some_checks_run_at_a_time() -> None:
    running, most, lock = 0, 0, Lock()

    def check_stream(app_id: str) -> list[Check]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return [fine(app_id)]

    SideBySide(within_s=600.0)(check_stream, [f"s{number}" for number in range(3 * MOST)])
    assert most <= MOST


def test_exception_of_a_check_is_raised() -> None:
    def check_stream(_app_id: str) -> list[Check]:
        raise StoreError("no")

    with pytest.raises(StoreError, match="no"):
        SideBySide(within_s=600.0)(check_stream, ["orders"])
