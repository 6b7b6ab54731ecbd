"""A table's state is put together in parts of bounded size, and in few of them where a table is small."""

import pytest

from delta_loader.spark.state_sessions import parts_for


@pytest.mark.parametrize(
    ("files", "parts"),
    [(0, 4), (100_000, 4), (100_001, 8), (1_000_000, 64), (10_000_000, 512), (100_000_000, 512)],
)
def test_parts_are_of_bounded_size_up_to_a_bounded_number(files: int, parts: int) -> None:
    assert parts_for(files) == parts
