"""The short form of `tests/soak/foreign_writers.py`: half a minute beside a customer's loop, in each isolation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.soak.foreign_writers import run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

SECONDS = 30


def test_neither_side_starves(spark: SparkSession, tmp_path: Path) -> None:
    outcome = run(spark, tmp_path, SECONDS)
    assert outcome.clean, str(outcome)
