"""What tests say in one line: settings of which only what matters is written, and values that are there."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import yaml

from common.settings import Settings
from common.spans import Position, Span

T = TypeVar("T")


def content_of(*streams: Mapping[str, object], folder: str = "memory://lake", **sections: object) -> dict[str, object]:
    """What a config file says of these streams, or of one like any other, over a stage in a folder."""
    usual = {"app_id": "orders", "topics": ["orders"], "table": f"{folder}/table", "columns": "id BIGINT"}
    content = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "stage": {"url": f"{folder}/stage"}, **sections}
    return {**content, "streams": [{**usual, **stream} for stream in streams or ({},)]}


def settings_of(*streams: Mapping[str, object], folder: str = "memory://lake", **sections: object) -> Settings:
    return Settings.model_validate(content_of(*streams, folder=folder, **sections))


def config_file(folder: Path, *streams: Mapping[str, object], **sections: object) -> Path:
    """The file, in the folder in which its stage and tables are."""
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(content_of(*streams, folder=str(folder), **sections)), "utf-8")
    return path


def span(start: int, end: int) -> Span:
    return Span(Position(start), Position(end))


def required(value: T | None) -> T:
    assert value is not None
    return value


def instance(kind: type[T], value: object) -> T:
    assert isinstance(value, kind), value
    return value
