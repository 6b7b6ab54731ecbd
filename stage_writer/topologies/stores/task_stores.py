"""All stores of one task, and how their state advances with the chain.

How a task is run (from one thread, except where noted):

    stores = TaskStores(builders, MemoryBackend())
    if stores.mark != tail_mark: stores.restore(snapshot, changes_oldest_first, tail_mark)  # files.py reads them
    stores.begin_record(); …the processors…; stores.undo_record() if one of them raised
    changes = stores.seal()            # a flush starts: these changes are its own
    snapshot = stores.snapshot()       # instead of the changes, sometimes: files.py writes it, in any thread
    stores.sealed(new_tail_mark)       # the flush's marker is there: once for each seal(), in their order
    stores.close()                     # what was not sealed is gone

Rules:

1. The backend is always at a marker of the chain: a seal's changes are merged into it once the marker exists, all of
   them or none, together with the mark. Until then they are in memory (layers.py).
2. A snapshot is of the last seal. While it is being read nothing is merged.
3. A restore gives exactly what was sealed by that mark. A store that the topology no longer has is left out, and one
   with another shape is refused by name.
4. A store's index is built from its entries, and never stored.
5. A backend that held the stores of another topology is not reused, even with a matching mark: it is restored.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from common.errors import ConfigError, StateError
from stage_writer.topologies.stores.backend import Backend, Changes, Space
from stage_writer.topologies.stores.builders import AnyStore, StoreBuilder, StoreKind
from stage_writer.topologies.stores.layers import Entry, Index, Journal, Layers

TASK_STORE = "__task"
"""A key-value store that each task has for the engine's use."""
_SHAPE = "\n"
"""Separates a mark from the names of the stores that the mark was made with."""
SnapshotEntry = tuple[Space, bytes, bytes]


class Snapshot:
    """The state at a seal. `entries` may be read in another thread; merging resumes after `close`."""

    def __init__(self, spaces: Mapping[Space, Callable[[], Iterator[Entry]]], kinds: Mapping[Space, str]) -> None:
        self._spaces = spaces
        self.kinds = kinds
        self.is_open = True

    def entries(self) -> Iterator[SnapshotEntry]:
        """Store, key and value, by store and then by key."""
        for space in sorted(self._spaces):
            for key, value in self._spaces[space]():
                yield space, key, value

    def close(self) -> None:
        """Release it, read or not."""
        self.is_open = False


class TaskStores:
    """The stores of one task as the backend holds them: check `mark`, and `restore` if it differs."""

    def __init__(self, builders: Iterable[StoreBuilder], backend: Backend) -> None:
        self._backend = backend
        self._journal = Journal()
        self._layers: dict[Space, Layers] = {}
        self._indexes: dict[Space, Index] = {}
        self._stores: dict[str, AnyStore] = {}
        self.kinds: dict[str, StoreKind] = {}
        self._snapshots: list[Snapshot] = []
        self._marks: list[str] = []
        self.has_dropped = False
        """Whether the restored files have a store that the topology no longer has."""
        for builder in (*builders, StoreBuilder(TASK_STORE, StoreKind.KEY_VALUE)):
            if builder.name in self._stores:
                msg = f"two state stores are named {builder.name}"
                raise ConfigError(msg, "give each store of the topology its own name")
            self._add(builder)
        self._shape = ",".join(f"{name}={kind}" for name, kind in sorted(self.kinds.items()))

    def _marked(self, mark: str) -> str:
        return f"{mark}{_SHAPE}{self._shape}"

    def _add(self, builder: StoreBuilder) -> None:
        index = builder.index()
        layers = self._layers[builder.name] = Layers(builder.name, self._backend, self._journal, index)
        if index is not None:
            self._indexes[builder.name] = index
        self.kinds[builder.name] = builder.kind
        self._stores[builder.name] = builder.build(layers)

    def store(self, name: str) -> Any:  # noqa: ANN401 - one of the three kinds, which who asks for it knows
        """A store by its name. Raises ConfigError for an unknown name."""
        store = self._stores.get(name)
        if store is None:
            msg = f"there is no state store {name!r}"
            raise ConfigError(msg, f"add it to the topology; it has: {', '.join(sorted(self._stores))}")
        return store

    @property
    def mark(self) -> str | None:
        """The backend's mark; None when its content cannot be reused (rule 5)."""
        mark, _, shape = (self._backend.mark or "").rpartition(_SHAPE)
        return mark if shape == self._shape and self._backend.mark is not None else None

    @property
    def memory_bytes(self) -> int:
        return sum(layers.size_bytes for layers in self._layers.values())

    @property
    def size_bytes(self) -> int:
        return self._backend.size_bytes

    @property
    def entries(self) -> int:
        """The approximate number of entries in all stores."""
        return sum(self._layers[name].count() for name in self._stores)

    def begin_record(self) -> None:
        """Changes up to now can no longer be undone."""
        self._journal.begin()

    def undo_record(self) -> None:
        """Undo the changes since `begin_record`."""
        self.undo_to(0)

    def savepoint(self) -> int:
        """A savepoint for `undo_to`, valid until the next `begin_record`."""
        return len(self._journal.entries)

    def undo_to(self, savepoint: int) -> None:
        self._journal.undo_to(savepoint)

    def seal(self) -> Changes:
        """The changes since the last seal; later ones belong to the next seal."""
        self._journal.begin()
        for store in self._stores.values():
            store.before_seal()
        sealed = {space: layers.seal() for space, layers in self._layers.items()}
        return Changes({space: changed for space, changed in sealed.items() if changed}, self.kinds)

    def sealed(self, mark: str) -> None:
        """The marker of the oldest seal exists (rule 1)."""
        self._marks.append(mark)
        self._snapshots = [snapshot for snapshot in self._snapshots if snapshot.is_open]
        if self._snapshots:
            return
        for each in self._marks:
            oldest = {space: layers.oldest() for space, layers in self._layers.items()}
            self._backend.apply(self._with_indexes(oldest), self._marked(each))
            for layers in self._layers.values():
                layers.merged()
        self._marks.clear()

    def snapshot(self) -> Snapshot:
        """The state at the last seal, to be called right after it (rule 2)."""
        snapshot = Snapshot({name: self._layers[name].at_last_seal() for name in self._stores}, self.kinds)
        self._snapshots.append(snapshot)
        return snapshot

    def restore(self, snapshot: Iterable[Changes], changes: Iterable[Changes], mark: str | None) -> None:
        """Restore what was sealed by the mark: a snapshot, in parts, and the changes after it, oldest first (rule 3).

        Without either the state is empty, as for a new task. Raises StateError for a store of another kind.
        """
        self._backend.clear()
        self.has_dropped = False
        for each in chain(snapshot, changes):
            self._require_kinds(each.kinds)
            self.has_dropped |= not each.kinds.keys() <= self._stores.keys()
            known = {space: changed for space, changed in each.spaces.items() if space in self._stores}
            self._backend.apply(self._with_indexes(known), None)
        if mark is not None:
            self._backend.apply({}, self._marked(mark))
        self._marks.clear()
        for layers in self._layers.values():
            layers.forget()

    def close(self) -> None:
        self._backend.close()

    def _require_kinds(self, kinds: Mapping[Space, str]) -> None:
        for name, kind in kinds.items():
            own = self.kinds.get(name)
            if own is not None and own != kind:
                msg = f"the state store {name} is a {own} store in the topology, but a {kind} store in the state"
                raise StateError(msg, "give the new store another name; the old one is then forgotten")

    def _with_indexes(
        self, changes: Mapping[Space, Mapping[bytes, bytes | None]]
    ) -> dict[Space, Mapping[bytes, bytes | None]]:
        with_indexes = dict(changes)
        for space, changed in changes.items():
            index = self._indexes.get(space)
            if index is not None:
                index_keys = ((index.index_key_of(key), value) for key, value in changed.items())
                with_indexes[index.space] = {
                    index_key: None if value is None else b""
                    for index_key, value in index_keys
                    if index_key is not None
                }
        return with_indexes
