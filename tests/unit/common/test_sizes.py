"""Times as people read them."""

import pytest

from common.sizes import time_text


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (1_772_323_200_000, "2026-03-01T00:00:00+00:00"),
        (1_772_323_200_001, "2026-03-01T00:00:00.001+00:00"),
        (-1, "1969-12-31T23:59:59.999+00:00"),
        (2**62, f"{2**62} ms"),
    ],
)
def test_time_has_milliseconds_where_they_are_not_zero(time_ms: int, text: str) -> None:
    assert time_text(time_ms) == text
