"""Checks of several streams at the same time."""

from threading import Event

import pytest

from common.errors import StoreError
from delta_loader.check_result import Check, Level
from delta_loader.checks.side_by_side import MOST, SideBySide


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

    assert SideBySide()(check_stream, app_ids) == {app_id: (fine(app_id),) for app_id in app_ids}


def test_exception_of_a_check_is_raised() -> None:
    def check_stream(_app_id: str) -> list[Check]:
        raise StoreError("no")

    with pytest.raises(StoreError, match="no"):
        SideBySide()(check_stream, ["orders"])
