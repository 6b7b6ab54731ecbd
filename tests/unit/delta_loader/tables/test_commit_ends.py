"""The outcome of a commit that raised an exception and is not in the table."""

import pytest
from delta.exceptions import ConcurrentAppendException, MetadataChangedException
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkException

from delta_loader.spark.delta import _unresolved
from delta_loader.tables.commits import Conflicted, Failed, Unknown


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConcurrentAppendException("a file was added"), Conflicted),
        (MetadataChangedException("a column was added"), Conflicted),
        (AnalysisException("a constraint"), Failed),
        (Py4JError("java.net.SocketTimeoutException: Read timed out"), Unknown),
        (Py4JNetworkError("Answer from Java side is empty"), Unknown),
        (PySparkException("org.apache.spark.SparkException: stopped"), Unknown),
    ],
)
def test_only_errors_raised_by_delta_have_a_known_outcome(
    error: Exception, outcome: type[Conflicted | Failed | Unknown]
) -> None:
    assert type(_unresolved(error)) is outcome
