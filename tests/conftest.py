"""The real parts that tests run on. The first test that asks for one starts it, and it lives as long as the run.

Tests with Hypothesis try the same examples every time: a few in `make unit`, more in `make test`. `make properties`
tries others, and many times as many. None has a deadline. Sweeps are marked `nightly`; what they draw, and what a short
slice of them draws in `make test`, comes from `FRESH_SEED`, which differs from run to run and is printed. It also draws
one of the tests that are marked with the same `in_turn`; `make nightly` runs them all.
"""

from __future__ import annotations

import atexit
import gc
import os
import random
import re
import sys
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from pyspark.sql import SparkSession
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from common.remedies import show_config
from devservices.java import SHORT_LIVED
from devservices.kafka import KafkaCluster
from devservices.s3 import S3Kind, S3Server

# Servers and Spark are imported by who starts them: a unit test pays for none of it.

os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED)

_COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", _COMMON, derandomize=True, max_examples=10)
settings.register_profile("same", _COMMON, derandomize=True, max_examples=30)
settings.register_profile("other", _COMMON, max_examples=1000)
# `make mutants` only asks whether a test fails: nothing is made of a failure.
settings.register_profile("mutants", _COMMON, derandomize=True, phases=(Phase.explicit, Phase.generate))
settings.load_profile(os.environ.get("PROPERTIES", "same"))

# Drawn by the process that was started first; pytest-xdist's workers have its environment.
FRESH_SEED = int(os.environ.setdefault("FRESH_SEED", str(random.SystemRandom().randrange(10**9))))
FRESH = pytest.param(FRESH_SEED, marks=pytest.mark.nightly, id="fresh")
"""Among a test's seeds: one that no run before had, in `make nightly` alone."""

_BY_THEMSELVES = ("tests/simulation/", "tests/property/")
_FIRST = ("tests/integration/", "tests/contract/", *_BY_THEMSELVES)


def examples(share: float) -> int:
    """How many examples a costly property tries: its share of what the profile says."""
    return max(1, round(settings().max_examples * share))


def pytest_report_header() -> str:
    """At the top of a run."""
    return f"fresh seed: {FRESH_SEED}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """At the end of a run."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f'the same seeds again: FRESH_SEED={FRESH_SEED} .venv/bin/pytest -m "" TEST')


@pytest.hookimpl(tryfirst=True)  # before what is not to run is left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What waits for servers and processes comes first, so that no long file is left over to one worker at the end."""
    _leave_to_the_night(items, all_of_them=config.option.markexpr == "nightly")
    places: dict[str, tuple[int, bool]] = {}
    for item in items:
        file = item.nodeid.partition("::")[0]
        folder = next((place for place, folder in enumerate(_FIRST) if file.startswith(folder)), len(_FIRST))
        place = (folder, "programs" not in getattr(item, "fixturenames", ()))
        places[file] = min(place, places.get(file, place))
    items.sort(key=lambda item: places[item.nodeid.partition("::")[0]])


def _leave_to_the_night(items: list[pytest.Item], *, all_of_them: bool) -> None:
    """Of the tests that show one thing in several surroundings, `make test` has one, drawn by the seed of the run."""
    by_rule: dict[str, list[pytest.Item]] = {}
    for item in items:
        marker = item.get_closest_marker("in_turn")
        if marker is not None and item.get_closest_marker("nightly") is None:
            by_rule.setdefault(marker.args[0], []).append(item)
    for rule, several in by_rule.items():
        drawn = random.Random(f"{FRESH_SEED} {rule}").choice(several)  # noqa: S311 - the header has the seed
        for item in several:
            if all_of_them or item is not drawn:
                item.add_marker(pytest.mark.nightly)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector looks at what tests leave behind, and not at all modules and tests each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """A file's tests share a worker's topics and tables; histories and properties share nothing, and are spread.

    What a Spark session does for the first time costs it much more CPU than the second time, and a merge has more of it
    than all else. So half of the workers take the files that need a session first, one of them those that merge; the
    others take these files last, and seldom start a session.
    """
    from xdist.scheduler import LoadFileScheduling

    class Spread(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(_BY_THEMSELVES) else str(super()._split_scope(nodeid))

        def _assign_work_unit(self, node: WorkerController) -> None:
            order = _order_of_worker(list(self.nodes).index(node))
            kinds = _kinds_of_files(config.rootpath)
            first = min(self.workqueue, key=lambda scope: order.index(kinds.get(scope, _Kind.OTHER)))
            self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False  # our order is the one above
    return Spread(config, log) if config.getoption("dist") == "loadfile" else None


class _Kind(Enum):
    """What a file of tests does with the Spark session of its worker."""

    MERGES = auto()
    LOADS = auto()
    OTHER = auto()
    """It needs none."""


def _order_of_worker(number: int) -> tuple[_Kind, ...]:
    if number % 2 == 1:
        return _Kind.OTHER, _Kind.LOADS, _Kind.MERGES
    return (_Kind.MERGES, _Kind.LOADS, _Kind.OTHER) if number == 0 else (_Kind.LOADS, _Kind.OTHER, _Kind.MERGES)


@cache
def _kinds_of_files(root: Path) -> Mapping[str, _Kind]:
    """The files with tests that ask for `spark`."""
    files = (file for folder in ("integration", "contract") for file in (root / "tests" / folder).glob("test_*.py"))
    asked, merges = re.compile(r'spark: SparkSession|getfixturevalue\("spark"\)'), re.compile(r'"merge"|ChangeStream')
    kinds: dict[str, _Kind] = {}
    for file in files:
        text = file.read_text("utf-8")
        if asked.search(text):
            kinds[file.relative_to(root).as_posix()] = _Kind.MERGES if merges.search(text) else _Kind.LOADS
    return kinds


def _end_worker(pid: int) -> None:
    if os.getpid() == pid:  # and not a fork of it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if "PYTEST_XDIST_WORKER" in os.environ:
    # DuckDB's binding reports as leaks what it still finds at the interpreter's very end, such as types that modules
    # hold. A worker that has reported its tests ends before that; what was registered later, to clean up, ran already.
    atexit.register(_end_worker, os.getpid())
else:
    atexit.register(gc.unfreeze)  # what is still there at the interpreter's end is no leak


@dataclass(frozen=True, slots=True)
class Lake:
    """A place for stages and tables that no other test knows."""

    kind: str
    """``file``, ``moto`` or ``versitygw``."""
    url: str
    storage_options: Mapping[str, object]
    server: S3Server | None = None

    @property
    def bucket(self) -> str:
        return self.url.removeprefix("s3://").partition("/")[0]


@pytest.fixture(autouse=True)
def _logs_are_nobodys() -> Iterator[None]:
    """A program that a test runs in this process sets up logs, into a standard error that ends with the test."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _no_config_is_named() -> Iterator[None]:
    """What a command of an earlier test named, by `common.remedies.show_config`, does not reach later ones."""
    yield
    show_config(None)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes of this run of tests."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def kafka(run_folder: Path, pytestconfig: pytest.Config) -> KafkaCluster:
    """A broker, which has other processes' topics as well."""
    from tests.shared_kafka import shared_kafka

    used = ExitStack()
    # Not in the teardown of a last test, whose time is limited: the process that started it waits for the others.
    pytestconfig.add_cleanup(used.close)
    return used.enter_context(shared_kafka(run_folder / "kafka"))


@pytest.fixture
def new_topic(kafka: KafkaCluster) -> Iterator[Callable[..., str]]:
    """Make topics that no other test knows: ``new_topic(partitions=4)`` is a name."""
    made: list[str] = []

    def new_topic(partitions: int = 1, config: Mapping[str, str] | None = None, prefix: str = "topic") -> str:
        made.append(kafka.create_topic(f"{prefix}-{uuid.uuid4().hex[:12]}", partitions, config))
        return made[-1]

    yield new_topic
    for topic in made:
        kafka.delete_topic(topic)


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """The S3 server that is always there, with the bucket ``moto``."""
    from devservices.s3 import running_s3
    from tests.shared_services import share_services

    share_services()
    with running_s3("moto") as server:
        server.create_bucket("moto")
        yield server


@pytest.fixture(scope="session")
def versitygw() -> Iterator[S3Server]:
    """The S3 server that keeps what it is given and checks who asks, with the bucket ``versitygw``."""
    from devservices.processes import ServiceError
    from devservices.s3 import ensure_program, running_s3, unavailable_reason
    from tests.shared_services import share_services

    if reason := unavailable_reason("versitygw"):
        pytest.skip(reason)
    try:
        ensure_program("versitygw")
    except ServiceError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    share_services()
    with running_s3("versitygw") as server:
        server.create_bucket("versitygw")
        yield server


@pytest.fixture(scope="session")
def minio() -> Iterator[S3Server]:
    from devservices.s3 import running_s3

    with running_s3("minio") as server:
        yield server


def built(*kinds: S3Kind) -> list[str]:
    """Which of these servers are in the cache; what takes minutes to build is tested by who has built it."""
    from devservices.s3 import program_of

    return [kind for kind in kinds if program_of(kind).exists()]


_LAKES = ["file", *(pytest.param(kind, marks=pytest.mark.s3) for kind in ("moto", "versitygw"))]


@pytest.fixture(params=_LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """The same test over a local disk and over each S3 server."""
    if request.param == "file":
        return Lake("file", tmp_path.as_uri(), {})
    server: S3Server = request.getfixturevalue(request.param)
    return Lake(server.kind, f"s3://{server.kind}/{uuid.uuid4().hex[:12]}", server.storage_options, server)


@pytest.fixture
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """The loader's own Spark session, one for the whole run; it reaches the test's `lake`, where it has one."""
    from tests.session import reach, session_of_tests
    from tests.spark_archive import use_spark_archive

    use_spark_archive()
    session = session_of_tests(tmp_path_factory.getbasetemp() / "spark")
    if "lake" in request.fixturenames:
        lake: Lake = request.getfixturevalue("lake")
        if lake.server is not None:
            reach(session, lake.server, lake.bucket)
    return session
