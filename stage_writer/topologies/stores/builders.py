"""A topology's declaration of a store, before there are tasks.

Rules:

1. A store's name is letters, digits, ``.``, ``_`` and ``-``; those that start with ``__`` are reserved for the engine.
2. Its shape (kind, and whether duplicates are kept) determines how its bytes are read. A state whose store had another
   shape is refused when it is restored; a retention may change.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from common.errors import ConfigError
from stage_writer.topologies.stores.key_value import KeyValueStore
from stage_writer.topologies.stores.keys import TIME_BYTES
from stage_writer.topologies.stores.layers import Index, Layers
from stage_writer.topologies.stores.timed import SEQUENCE_BYTES, SessionStore, WindowStore

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_MILLISECOND = timedelta(milliseconds=1)
_BY_TIME = "/by_time"
"""The suffix of a store's name for the space of its index."""


class StoreKind(StrEnum):
    KEY_VALUE = "key_value"
    WINDOW = "window"
    WINDOW_DUPLICATES = "window_duplicates"
    SESSION = "session"


AnyStore = KeyValueStore | WindowStore | SessionStore
_BYTES_AFTER_TIME = {
    StoreKind.WINDOW: 0,
    StoreKind.WINDOW_DUPLICATES: SEQUENCE_BYTES,
    StoreKind.SESSION: TIME_BYTES,  # the start, after the end
}


@dataclass(frozen=True, slots=True)
class StoreBuilder:
    """Makes one store per task. Returned by `Stores.key_value`, `Stores.window` and `Stores.session`."""

    name: str
    kind: StoreKind
    retention_ms: int = 0
    size_ms: int = 0
    persistent: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            msg = f"{self.name!r} is not a valid name of a state store"
            raise ConfigError(msg, "use letters, digits, '.', '_' and '-', at most 200")
        if self.kind is not StoreKind.KEY_VALUE and self.retention_ms <= 0:
            msg = f"the state store {self.name} has no retention"
            raise ConfigError(
                msg, "set a retention of at least a millisecond: the time within which late records may arrive"
            )

    def index(self) -> Index | None:
        """The order of the store's entries by time; None where they have no time."""
        bytes_after_time = _BYTES_AFTER_TIME.get(self.kind)
        return None if bytes_after_time is None else Index(self.name + _BY_TIME, bytes_after_time)

    def build(self, layers: Layers) -> AnyStore:
        """The store over its layers, which include its index."""
        if self.kind is StoreKind.KEY_VALUE:
            return KeyValueStore(self.name, layers)
        if self.kind is StoreKind.SESSION:
            return SessionStore(self.name, layers, self.retention_ms)
        duplicates = self.kind is StoreKind.WINDOW_DUPLICATES
        return WindowStore(self.name, layers, self.retention_ms, self.size_ms, duplicates=duplicates)


class Stores:
    """The stores that a topology may declare."""

    @staticmethod
    def key_value(name: str, *, persistent: bool = False) -> StoreBuilder:
        """A key-value store."""
        return StoreBuilder(name, StoreKind.KEY_VALUE, persistent=persistent)

    @staticmethod
    def window(
        name: str, retention: timedelta, size: timedelta, *, duplicates: bool = False, persistent: bool = False
    ) -> StoreBuilder:
        """A window store: keeps windows that start within ``retention`` of the latest; each is ``size`` long."""
        kind = StoreKind.WINDOW_DUPLICATES if duplicates else StoreKind.WINDOW
        return StoreBuilder(name, kind, retention // _MILLISECOND, size // _MILLISECOND, persistent)

    @staticmethod
    def session(name: str, retention: timedelta, *, persistent: bool = False) -> StoreBuilder:
        """A session store: keeps sessions that end within ``retention`` of the latest."""
        return StoreBuilder(name, StoreKind.SESSION, retention // _MILLISECOND, persistent=persistent)
