"""The settings accept a cron line if, and only if, apscheduler does and it fires some day."""

from datetime import UTC, datetime

from apscheduler.triggers.cron import CronTrigger
from hypothesis import example, given
from hypothesis import strategies as st

from common.settings.values import require_cron

ANY_MOMENT = datetime(2001, 1, 1, tzinfo=UTC)
NAMES = "jan feb Mar dec mon TUE sun last lost".split()


def one_of_a_field(highest: int) -> st.SearchStrategy[str]:
    numbers = st.integers(0, highest + 2).map(str)
    ranges = numbers | st.tuples(numbers, numbers).map("-".join) | st.just("*")
    steps = st.tuples(ranges, st.sampled_from([0, 1, 2, highest - 1, highest, highest + 1]).map(str)).map("/".join)
    names = st.sampled_from(NAMES)
    return ranges | steps | names | st.tuples(names, names).map("-".join)


def field(highest: int) -> st.SearchStrategy[str]:
    return st.just("*") | st.lists(one_of_a_field(highest), min_size=1, max_size=3).map(",".join)


def is_taken_by_apscheduler(line: str) -> bool:
    try:
        trigger = CronTrigger.from_crontab(line, timezone=UTC)
    except ValueError:
        return False
    return trigger.get_next_fire_time(None, ANY_MOMENT) is not None


@given(st.tuples(field(59), field(23), field(31), field(12), field(6)).map(" ".join))
@example("0 25 * * *")
@example("0 0 30 2 *")
@example("0 0 29 feb mon")
@example("0 0 31 4,jun,9,11 *")
@example("0 0 last 2 *")
@example("*/60 * * * *")
@example("0 0 * * 7")
def test_settings_accept_the_cron_lines_that_apscheduler_can_run(line: str) -> None:
    try:
        require_cron(line)
    except ValueError:
        assert not is_taken_by_apscheduler(line)
    else:
        assert is_taken_by_apscheduler(line)
