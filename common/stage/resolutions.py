"""An operator's resolution of a rollback of a table, as an object in the stage.

Rules:

1. Its name identifies the event that it resolves: ``accept/<app_id>/<table id>/<version, 20 digits>.json``, with the
   version of the commit that rolled the table back. It is made by exclusive create, so an event has one resolution; a
   second RESTORE is another version, and needs its own resolution.
2. `bootstrap accept` writes it after the chains were rewound, as its last step. A loader carries it out by a commit
   whose metadata ``answers`` the same version, which proves that it was carried out: nothing is recorded elsewhere, and
   the object may be removed after that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import UsageError
from common.remedies import CONFIG, quoted
from common.tables.commit_metadata import (
    Decision,
    GenerationsByPartition,
    flat,
    generations_from_stored,
    generations_to_stored,
    nested,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.spans import Position, TopicPartition

ACCEPT = "accept"


@dataclass(frozen=True, slots=True)
class Resolution:
    """What an operator decided about one event of one table."""

    app_id: str
    table: str
    table_id: str
    version: int
    decision: Decision
    positions: Mapping[TopicPartition, Position]
    """Where loading continues, for the Kafka partitions that the event concerns."""
    author: str
    created_ms: int
    generations: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The generations of the positions' chains; a missing one is 0."""

    @property
    def path(self) -> str:
        return resolution_path(self.app_id, self.table_id, self.version)

    def to_bytes(self) -> bytes:
        stored = _Stored(
            app_id=self.app_id,
            table=self.table,
            table_id=self.table_id,
            went_back_at=self.version,
            decision=self.decision,
            positions=nested(self.positions),
            author=self.author,
            created_ms=self.created_ms,
            generations=generations_to_stored(self.generations),
        )
        absent = {"generations"} if stored.generations is None else set()
        return stored.model_dump_json(indent=2, exclude=absent).encode()

    @classmethod
    def from_bytes(cls, path: str, data: bytes) -> Resolution:
        """The inverse. Raises UsageError."""
        try:
            stored = _Stored.model_validate_json(data)
            return cls(
                app_id=stored.app_id,
                table=stored.table,
                table_id=stored.table_id,
                version=stored.went_back_at,
                decision=stored.decision,
                positions=flat(stored.positions),
                author=stored.author,
                created_ms=stored.created_ms,
                generations=generations_from_stored(stored.generations),
            )
        except (ValidationError, ValueError) as error:
            msg = f"the answer {path} in the stage cannot be read: {' '.join(str(error).split())[:200]}"
            app_id = unquote(path.split("/")[1]) if path.count("/") else path
            command = f"bootstrap accept {CONFIG} --stream {quoted(app_id)}"
            raise UsageError(
                msg, f"delete {path} from the stage, and answer again: `{command} --replay` or `{command} --go-on`"
            ) from None


def resolution_path(app_id: str, table_id: str, version: int) -> str:
    """The path of an event's resolution (rule 1)."""
    return f"{ACCEPT}/{quote(app_id, safe='')}/{quote(table_id, safe='')}/{version:020d}.json"


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True)

    version: int = Field(default=1, le=1)
    app_id: str
    table: str
    table_id: str
    went_back_at: int
    decision: Decision
    positions: dict[str, dict[str, int]]
    author: str
    created_ms: int
    generations: GenerationsByPartition | None = None
