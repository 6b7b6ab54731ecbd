"""Runs the tests of one module's mutants, each mutant in a forked process."""

import gc
import importlib
import json
import mmap
import os
import resource
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING

import pytest

from tests.mutants.changes import Mutant

if TYPE_CHECKING:
    from _typeshed import TraceFunction  # of type checkers alone

_OK, _FAILED, _NO_TESTS = 0, 1, 5
_CPU_S, _PATIENCE = 10, 5
"""CPU time of a mutant: so much, and so many times what the tests took without it."""
_STUCK_S, _IDLE = 60, 0.01
"""A mutant is stuck when it computes for less than this part of so many seconds: it waits for what never comes."""
_MEMORY_BYTES = 4 << 30
_OPTIONS = (
    "-q",
    "-m",
    "not s3 and not spark and not broker",
    "-pno:cacheprovider",
    "--timeout=0",
    "-ofaulthandler_timeout=0",
)


class SweepError(Exception):
    """The tests do not pass without a mutant."""


def survivors_of(module: str, mutants: Sequence[Mutant], tests: Sequence[str]) -> list[str]:
    """Which mutants no test sees; each is printed at once. Raises SweepError where the tests fail as they are."""
    terminal = os.dup(sys.stdout.fileno())

    def work() -> object:
        sweep = _Sweep(module, mutants, lambda what: os.write(terminal, f"survived: {module}: {what}\n".encode()))
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            pytest.main([*_OPTIONS, f"--basetemp={folder}/tests", *tests], plugins=[sweep])
        return sweep.survivors

    survivors, _ = _forked(work)
    os.close(terminal)
    if not isinstance(survivors, list):
        msg = f"{module}: its tests fail as it is; run {' '.join(tests)}"
        raise SweepError(msg)
    return survivors


def _forked(work: Callable[[], object], cpu_s: float | None = None) -> tuple[object, int]:
    """What a forked process makes of it, or None, and its exit code."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        code = _FAILED
        try:
            os.close(reading)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            if cpu_s is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s)))
                resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                threading.Thread(target=_end_when_stuck, daemon=True).start()
            with os.fdopen(writing, "w") as answer:
                json.dump(work(), answer)
            code = _OK
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as answer:
        answer_text = answer.read()
    _, status = os.waitpid(process, 0)
    return json.loads(answer_text) if answer_text else None, os.waitstatus_to_exitcode(status)


def _end_when_stuck() -> None:
    """A loaded machine makes a process slow, but does not keep it from computing at all."""
    before_s = time.process_time()
    while True:
        time.sleep(_STUCK_S)
        after_s = time.process_time()
        if after_s - before_s < _IDLE * _STUCK_S:
            os._exit(_FAILED)
        before_s = after_s


@dataclass(frozen=True, slots=True)
class _Ran:
    cpu_s: float
    lines: frozenset[int]
    """Those of the module's functions that it ran."""


class _Sweep:
    """A plugin of pytest in whose place of a run the mutants are tried."""

    def __init__(self, module: str, mutants: Sequence[Mutant], tell: Callable[[str], object]) -> None:
        self._module, self._mutants, self._tell = module, mutants, tell
        self.survivors: list[str] | None = None

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        path = importlib.import_module(self._module).__file__ or ""
        gc.unfreeze()  # what was frozen with the collection is not among the objects
        functions = [
            function
            for function in gc.get_objects()
            if isinstance(function, FunctionType) and function.__code__.co_filename == path
        ]
        gc.freeze()  # a forked process copies no memory for looking through it
        observed, code = _forked(lambda: [_observed(item, path) for item in session.items])
        if code != _OK or not isinstance(observed, list):
            return True
        ran = {
            item: _Ran(cpu_s, frozenset(lines)) for item, (cpu_s, lines) in zip(session.items, observed, strict=True)
        }
        quickest = sorted(session.items, key=lambda item: ran[item].cpu_s)
        survivors, last_run = [], mmap.mmap(-1, 8)  # of both processes
        for mutant in self._mutants:
            seeing = [item for item in quickest if not ran[item].lines.isdisjoint(mutant.lines)]
            cpu_s = _CPU_S + _PATIENCE * sum(ran[item].cpu_s for item in seeing)
            changed = compile(mutant.tree, path, "exec", dont_inherit=True)

            def work(changed: CodeType = changed, seeing: list[pytest.Item] = seeing) -> None:
                _put(changed, functions)
                for item in seeing:
                    last_run[:] = quickest.index(item).to_bytes(8)
                    _run(item)

            if not seeing or _forked(work, cpu_s)[1] == _OK:
                survivors.append(mutant.what)
                self._tell(mutant.what)
            else:  # what kills one mutant soon kills the next
                quickest.insert(0, quickest.pop(int.from_bytes(last_run[:])))
        self.survivors = survivors
        return True


def _run(item: pytest.Item) -> None:
    """Run a test; a failure ends the process."""

    class _Ends:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                os._exit(_FAILED)

    plugins = item.config.pluginmanager
    ends = _Ends()
    plugins.register(ends)
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    plugins.unregister(ends)


def _observed(item: pytest.Item, path: str) -> tuple[float, list[int]]:
    """Run a test; its CPU time, and which lines of a file it ran."""
    lines: set[int] = set()

    def ran(frame: FrameType, _: str, __: object) -> "TraceFunction":
        lines.add(frame.f_lineno)
        return ran

    def call(frame: FrameType, _: str, __: object) -> "TraceFunction | None":
        return ran if frame.f_code.co_filename == path else None

    began_s = time.process_time()
    threading.settrace(call)
    sys.settrace(call)
    _run(item)
    sys.settrace(None)
    threading.settrace(None)
    return time.process_time() - began_s, sorted(lines)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _put(code: CodeType, functions: Sequence[FunctionType]) -> None:
    """Give functions that are loaded the code that a changed module has for them."""
    changed: dict[tuple[str, int], list[CodeType]] = defaultdict(list)
    for inner in _codes(code):
        changed[inner.co_qualname, inner.co_firstlineno].append(inner)
    for function in functions:
        codes = changed[function.__code__.co_qualname, function.__code__.co_firstlineno]
        if len(codes) == 1 and len(codes[0].co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = codes[0]
