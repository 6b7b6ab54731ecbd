"""What tests say in one line: settings of which only what matters is written, and values that are there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from common.settings import Settings
from common.spans import Position, Span

if TYPE_CHECKING:
    from tests.conftest import Lake

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


def pipeline_config(
    servers: str, place: Path | Lake, *streams: Mapping[str, Any], **sections: Mapping[str, object]
) -> dict[str, Any]:
    """A config without pages whose stage is in that place; the group is named after the first stream's first topic."""
    stage: dict[str, object] = {"url": f"{place}/stage"}
    if not isinstance(place, Path):
        stage = {"url": f"{place.url}/stage", "storage_options": dict(place.storage_options)}
    usual: dict[str, Mapping[str, object]] = {
        "kafka": {"bootstrap.servers": servers},
        "stage": stage,
        "writer": {"group_id": streams[0]["topics"][0], "http": None},
        "loader": {"http": None, "spark": {"spark.master": "local[2]"}},
    }
    merged = {name: {**usual.get(name, {}), **sections.get(name, {})} for name in {**usual, **sections}}
    return {**merged, "streams": list(streams)}


def span(start: int, end: int) -> Span:
    return Span(Position(start), Position(end))


def required(value: T | None) -> T:
    assert value is not None
    return value


def instance(kind: type[T], value: object) -> T:
    assert isinstance(value, kind), value
    return value
