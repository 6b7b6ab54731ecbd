"""Records that tests stage by hand, and in-memory tables to load them into."""

import uuid

import pytest

from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.staging import Staging


@pytest.fixture
def staging() -> Staging:
    """The stage of a stream and its tables' files, in memory."""
    return Staging(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def tables() -> MemoryDeltaTables:
    return MemoryDeltaTables()
