"""Releases next to one another: each reads the objects that older ones wrote, and older ones read today's.

Each folder of `files/` is a release (`first` is the very first writer's). A reader ignores unknown fields, and
refuses an unknown version; so within one version no field may be removed, or change its type.
"""

import json
import uuid
from pathlib import Path
from types import ModuleType

import pytest

from common.errors import NewerFormatError, StateError
from common.stage import chain_origins, markers, replacements, stored
from common.stage.appeared_routes import AppearedRoutes
from common.stage.chain_origins import origin_from_bytes, origin_path
from common.stage.idle import facts_from_bytes, idle_path
from common.stage.leases import LeaseRecord
from common.stage.markers import manifest_from_bytes
from common.stage.paused import pause_of
from common.stage.replacements import replacement_from_bytes
from common.stage.resolutions import Resolution
from common.stage.versions import AgreedColumns, Evolved
from common.storage.store import FsspecStore
from common.tables.commit_metadata import CommitMetadata
from stage_writer.outbox.records import outgoing_from_bytes
from stage_writer.topologies.stores.backend import Changes
from stage_writer.topologies.stores.files import changes_from_bytes, snapshot_from_bytes
from tests.upgrades import formats

FILES = sorted(formats.FILES.glob("*/*.json"))
BINARY = sorted(path for path in formats.FILES.glob("*/*") if path.suffix in {".changes", ".snapshot", ".outbox"})
WRITTEN = formats.written()


def read(name: str, data: bytes) -> object:  # noqa: C901, PLR0911 - one for each format
    if name in formats.MARKERS:
        return manifest_from_bytes(formats.NAME, data)
    if name in formats.REPLACEMENTS:
        return replacement_from_bytes(formats.REQUEST, data)
    if name in formats.ORIGINS:
        return origin_from_bytes(origin_path(formats.SOURCE), data)
    match name:
        case "idle":
            return facts_from_bytes(idle_path("writer-1"), data).partitions
        case "lease":
            return LeaseRecord.from_bytes(data, 1.0)
        case "columns":
            return Evolved.from_bytes(formats.GAINED.path, formats.GAINED.version, data)
        case "agreed-columns":
            return AgreedColumns.from_bytes(formats.AGREED.path, formats.AGREED.version, data)
        case "routes":
            return AppearedRoutes.from_bytes(formats.APPEARED.path, formats.APPEARED.version, data)
        case "pause":
            store = FsspecStore(f"memory://{uuid.uuid4().hex}", {})
            store.create(formats.PAUSE.path, data)
            return pause_of(store, formats.PAUSE.part, formats.PAUSE.app_id)
        case "answer":
            return Resolution.from_bytes(formats.ANSWER.path, data)
        case _:
            return CommitMetadata.from_json(data.decode())


EXPECTED: dict[str, object] = {
    **formats.MARKERS,
    **formats.REPLACEMENTS,
    **formats.ORIGINS,
    "idle": formats.FACTS,
    "lease": formats.LEASE,
    "columns": formats.GAINED,
    "agreed-columns": formats.AGREED,
    "routes": formats.APPEARED,
    "pause": formats.PAUSE,
    "answer": formats.ANSWER,
    "commit": formats.COMMIT,
}


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_object_of_an_older_release_reads_the_same_now(path: Path) -> None:
    assert read(path.stem, path.read_bytes()) == EXPECTED[path.stem]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_todays_object_has_every_field_that_an_older_release_reads(path: Path) -> None:
    missing = list(_missing(json.loads(path.read_bytes()), json.loads(WRITTEN[path.stem][1]), path.stem))
    assert missing == []


def _missing(old: object, new: object, place: str) -> list[str]:
    """The paths of an older object that a newer one lacks, or has with another type."""
    if type(old) is not type(new):
        return [f"{place}: {type(old).__name__} became {type(new).__name__}"]
    if isinstance(old, dict) and isinstance(new, dict):
        gone = [f"{place}.{key} is gone" for key in old if key not in new]
        return gone + [
            missing for key in old if key in new for missing in _missing(old[key], new[key], f"{place}.{key}")
        ]
    if isinstance(old, list) and isinstance(new, list):
        shorter = [f"{place} has {len(new)} instead of {len(old)}"] if len(new) < len(old) else []
        return shorter + [missing for a, b in zip(old, new, strict=False) for missing in _missing(a, b, f"{place}[]")]
    return []


def read_binary(name: str, data: bytes) -> object:
    match name.rpartition(".")[2]:
        case "changes":
            return changes_from_bytes(name, data)
        case "snapshot":
            parts = list(snapshot_from_bytes(name, data))
            return Changes({key: value for part in parts for key, value in part.spaces.items()}, parts[0].kinds)
        case _:
            return outgoing_from_bytes(name, data)


EXPECTED_BINARY: dict[str, object] = {
    "state-1.changes": formats.CHANGED,
    "state-1.snapshot": formats.HELD,
    "outbox-1.outbox": formats.SENT,
}


@pytest.mark.parametrize("path", BINARY, ids=name_of)
def test_state_of_an_older_release_reads_the_same_now(path: Path) -> None:
    assert read_binary(path.name, path.read_bytes()) == EXPECTED_BINARY[path.name]


@pytest.mark.parametrize("name", sorted(EXPECTED_BINARY))
def test_state_of_a_higher_version_is_refused_by_name(name: str) -> None:
    data = bytearray(formats.written_binary()[name])
    data[8] += 1  # after eight bytes that name the format
    with pytest.raises(StateError, match=r"has format version 2; this program reads up to 1") as caught:
        read_binary(name, bytes(data))
    assert name in str(caught.value)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_format_round_trips(name: str) -> None:
    assert read(name, WRITTEN[name][1]) == EXPECTED[name]


READERS: dict[str, ModuleType] = {
    **dict.fromkeys(formats.MARKERS, markers),
    **dict.fromkeys(formats.REPLACEMENTS, replacements),
    **dict.fromkeys(formats.ORIGINS, chain_origins),
    "agreed-columns": stored,
    "routes": stored,
}
"""The module that reads a format, and knows its highest version."""


@pytest.mark.parametrize("name", READERS)
def test_reader_of_lower_versions_refuses_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = WRITTEN[name][1]
    version = json.loads(data)["version"]
    assert name.endswith(f"-{version}") or version == 1
    monkeypatch.setattr(READERS[name], "VERSION", version - 1)
    with pytest.raises(NewerFormatError, match=f"has format version {version}; this program reads up to {version - 1}"):
        read(name, data)


def test_each_format_was_written_by_some_release() -> None:
    assert {path.stem for path in FILES} == set(WRITTEN)
    assert {path.name for path in BINARY} == set(formats.written_binary())
