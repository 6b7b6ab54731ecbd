"""The short form of `tests/soak/foreign_writers.py`: half a minute next to a customer's loop, in each isolation."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.soak.foreign_writers import run

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

SECONDS = 30


def test_neither_side_starves(spark: SparkSession, tmp_path: Path) -> None:
    outcome = run(spark, tmp_path, SECONDS)
    assert outcome.clean, str(outcome)
