"""Work in a thread of its own."""

import threading

import pytest

from common.background import in_background


@pytest.mark.parametrize(
    "error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt()], ids=lambda error: type(error).__name__
)
def test_whatever_background_work_raises_is_in_its_future(error: BaseException) -> None:
    def work() -> None:
        raise error

    future = in_background("failing-work", work)
    for thread in threading.enumerate():
        if thread.name == "failing-work":
            thread.join()
    assert future.done()
    assert future.exception() is error
