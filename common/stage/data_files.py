"""Names of data files: written and read by one type.

A data file is in Hive-style partition folders below its table's root, and its name says where its rows came from::

    day=2026-03-01/orders-0-00000000000000000041-<unique>.snappy.parquet

Rules:

1. `DataFileName.path` and `DataFileName.parse` are exact inverses, except for rule 3.
2. Folder names are escaped as Spark's ``ExternalCatalogUtils.escapePathName`` does (and the character 0, which no file
   system accepts), so a folder means the same to every reader; a null and an empty value (one and the same in Delta)
   are ``__HIVE_DEFAULT_PARTITION__``.
3. A name is never too long: file systems allow 255 bytes between two slashes and S3 allows 1,024 in all, and a record's
   value may be longer, or a topic's name. A part that is too long is replaced by its digest (`shortened`). Nothing is
   lost by that: markers and the table's log contain a file's partition values, and its rows their topic.
4. A file that waits for Spark (a replacement, or rows of many partition values) is stored below the stage
   (`waiting_path`).
5. A name belongs to the topic, the partition and the start of one flush, and a waiting file's folder to one table. A
   manifest may only name its own files, or it is refused (`require_own_file` and the two after it): otherwise the
   manifest of one stream could have another's files loaded, and deleted.
6. A Delta log has the path percent-encoded as a URI (`delta_path`), which is a second encoding on top of rule 2.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from common.errors import MarkerError
from common.spans import Partition, Position, Topic, TopicPartition

STAGED = "data"
"""The stage's folder for files that wait for Spark."""
LONGEST_FLUSH_S = 1800.0
"""How old a flush's first file may be at its claim. After that its records are staged again under new names, because a
clean-up removes files that no marker names once they are twice as old."""
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
CODECS = ("snappy", "zstd")
LONGEST_BYTES = 100
"""The limit for a column, a value or a topic in a name, after escaping."""
DIGEST = "sha256-"

ESCAPED = "\"#%'*/:=?\\{[]^\x7f" + "".join(map(chr, range(32)))
"""The characters that `escape` writes as a percent sign and two digits."""
_FILE = re.compile(
    r"(?P<topic>.+)-(?P<partition>\d+)-(?P<start>\d{20})-(?P<unique>[0-9a-f-]+)"
    rf"\.(?P<codec>{'|'.join(CODECS)})\.parquet",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class DataFileName:
    """The path of one Parquet file of a flush, relative to its table's root."""

    topic_partition: TopicPartition
    start: Position
    unique: str
    """Lower-case hexadecimal digits and dashes; a UUID."""
    partition_values: tuple[tuple[str, str | None], ...] = ()
    """The table's partition columns in order, each with its value as Delta writes it."""
    codec: str = CODECS[0]

    @property
    def path(self) -> str:
        """The path relative to the table's root, as in the object store."""
        folders = "".join(f"{escape(shortened(column))}={folder(value)}/" for column, value in self.partition_values)
        partition = self.topic_partition
        suffix = f"{self.unique}.{self.codec}.parquet"
        return f"{folders}{shortened(partition.topic)}-{partition.partition}-{self.start:020d}-{suffix}"

    @classmethod
    def parse(cls, path: str) -> DataFileName:
        """The inverse of `path`; raises MarkerError for a path that no stage writer made."""
        name = _parsed(path)
        if name is None:
            msg = f"{path!r} is not the name of a data file of a stage writer"
            raise MarkerError(msg, "leave it alone, or delete it if nothing refers to it")
        return name


def waiting_path(table: str, name: DataFileName) -> str:
    """The path below the stage's root of a file that waits for Spark, for the table at a URL."""
    return f"{waiting_folder(table)}{name.path}"


def waiting_folder(table: str) -> str:
    """The stage's folder, with the closing slash, for files that wait for Spark and the table at a URL."""
    return f"{STAGED}/{escape(shortened(table.rstrip('/').rpartition('/')[2] or 'table'))}/"


def require_own_file(path: str, partition: TopicPartition, start: Position, partition_by: Sequence[str]) -> None:
    """Raises ValueError for a path below a table that is not a data file of the flush at ``start`` (rule 5)."""
    name = _parsed(path)
    if name is None:
        raise ValueError(f"the path {path!r} is not the name of a data file of a stage writer")
    _require_owner(name, path, partition, range(start, start + 1))
    if [column for column, _ in name.partition_values] != list(map(shortened, partition_by)):
        raise ValueError(f"the file {path!r} lies in folders of other columns than its table is partitioned by")


def require_own_waiting_file(path: str, table: str, partition: TopicPartition, start: Position) -> None:
    """Raises ValueError for a path below the stage that is not a table's file of the flush at ``start`` (rule 5)."""
    require_own_file(_below_waiting_folder(path, table), partition, start, ())


def require_own_replay_file(path: str, table: str, partition: TopicPartition, starts: range) -> None:
    """Raises ValueError for a path below the stage that is another table's, another partition's or another range's.

    A replay may cut its files anywhere, so any start of the range is accepted.
    """
    name = _parsed(_below_waiting_folder(path, table))
    if name is not None:
        _require_owner(name, path, partition, starts)


def _below_waiting_folder(path: str, table: str) -> str:
    folder = waiting_folder(table)
    if not path.startswith(folder):
        raise ValueError(f"the path {path!r} is not below {folder}, where files wait for {table}")
    return path.removeprefix(folder)


def _require_owner(name: DataFileName, path: str, partition: TopicPartition, starts: range) -> None:
    owner = name.topic_partition
    if owner.topic != shortened(partition.topic) or owner.partition != partition.partition or name.start not in starts:
        raise ValueError(f"the file {path!r} belongs to {owner} at {name.start}, not to {partition} at {starts.start}")


def _parsed(path: str) -> DataFileName | None:
    *folders, name = path.split("/")
    match = _FILE.fullmatch(name)
    pairs = [part.partition("=") for part in folders]
    if match is None or any(not separator for _, separator, _ in pairs):
        return None
    return DataFileName(
        TopicPartition(Topic(match["topic"]), Partition(int(match["partition"]))),
        Position(int(match["start"])),
        match["unique"],
        tuple((unquote(column), None if value == NULL_FOLDER else unquote(value)) for column, _, value in pairs),
        match["codec"],
    )


def escape(text: str) -> str:
    """Escape one part of a folder name as Hive and Spark do."""
    return "".join(f"%{ord(char):02X}" if char in ESCAPED else char for char in text)


def folder(value: str | None) -> str:
    """The part after ``=`` in the folder of a partition value."""
    return escape(shortened(value)) if value else NULL_FOLDER


def shortened(text: str) -> str:
    """The text itself, or a digest of a text that is too long for a name (rule 3)."""
    if len(escape(text).encode()) <= LONGEST_BYTES:
        return text
    return DIGEST + hashlib.sha256(text.encode()).hexdigest()[:32]


def delta_path(path: str) -> str:
    """The ``path`` of an AddFile action for a data file's path: a relative, percent-encoded URI."""
    return quote(path, safe="/=:-._~!$&'()*+,;@")
