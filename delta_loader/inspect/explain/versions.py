"""The files that one version of a table added, and their fate since."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from common.errors import MarkerError
from common.spans import Topic, TopicPartition
from common.stage.data_files import DataFileName, shortened
from common.stage.markers import MarkerName
from delta_loader.tables.history import DataFile, TableVersion


@dataclass(frozen=True, slots=True)
class LaterRemoval:
    """A later version that removed files of this one from the table."""

    version: int
    words: str
    files: int
    keeps_rows: bool
    """Whether it only moved the rows, as OPTIMIZE does."""


@dataclass(frozen=True, slots=True)
class VersionReport:
    """A version, or the fact that the log no longer has it."""

    url: str
    number: int
    newest: int
    oldest: int
    version: TableVersion | None = None
    """None where the log was cleaned up."""
    markers: Mapping[MarkerName, bool] = field(default_factory=dict)
    """The flushes that its files are from, by file name, and whether each marker is still in the stage."""
    gone: tuple[LaterRemoval, ...] = ()
    """Which later versions removed its files, oldest first."""
    live_files: int = 0
    """How many of its files the newest version still has."""


def markers_of(version: TableVersion) -> tuple[MarkerName, ...]:
    """The markers whose files a version added, by the files' names, in order."""
    topics = (
        {}
        if version.metadata is None
        else {shortened(partition.topic): partition.topic for partition in version.metadata.spans}
    )
    names = {_marker(file, topics) for file in version.added}
    return tuple(sorted(name for name in names if name is not None))


def _marker(file: DataFile, topics: Mapping[str, Topic]) -> MarkerName | None:
    try:
        name = DataFileName.parse(file.path)
    except MarkerError:
        return None  # written by Spark
    partition = name.topic_partition
    return MarkerName(TopicPartition(topics.get(partition.topic, partition.topic), partition.partition), name.start)


def since(added: Iterable[DataFile], later: Iterable[TableVersion]) -> tuple[tuple[LaterRemoval, ...], int]:
    """Which later versions removed a version's files, and how many files are left. A RESTORE may bring some back."""
    every = {file.path for file in added}
    alive, gone = set(every), []
    for version in later:
        taken = alive & {file.path for file in version.removed}
        if taken:
            gone.append(LaterRemoval(version.version, version.words, len(taken), not version.changes_data))
        alive = (alive - taken) | (every & {file.path for file in version.added})
    return tuple(gone), len(alive)
