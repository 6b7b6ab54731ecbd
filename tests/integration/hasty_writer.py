"""``python -m tests.integration.hasty_writer run CONFIG``: a stage writer that SIGUSR1 makes impatient.

From then on it asks each second, and no longer each minute, for records that Kafka has and does not send.
"""

import signal

from stage_writer.__main__ import main
from stage_writer.fetch import truncation


def hurry(_number: int, _frame: object) -> None:
    truncation.OVERDUE_S = 1.0


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, hurry)
    main()
