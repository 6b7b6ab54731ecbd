"""What tests say in one line: settings of which only what matters is written, and values that are there."""

from collections.abc import Mapping
from typing import TypeVar

from common.settings import Settings

T = TypeVar("T")


def settings_of(*streams: Mapping[str, object], folder: str = "memory://lake", **sections: object) -> Settings:
    """Settings of these streams, or of one like any other, over a stage in a folder."""
    usual = {"app_id": "orders", "topics": ["orders"], "table": f"{folder}/table", "columns": "id BIGINT"}
    content = {"kafka": {"bootstrap.servers": "nowhere:1"}, "stage": {"url": f"{folder}/stage"}, **sections}
    return Settings.model_validate({**content, "streams": [{**usual, **stream} for stream in streams or ({},)]})


def required(value: T | None) -> T:
    """The value, which is there."""
    assert value is not None
    return value


def instance(kind: type[T], value: object) -> T:
    """The value, which is of this kind."""
    assert isinstance(value, kind), value
    return value
