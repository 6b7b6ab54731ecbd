"""State stores: the memory of a topology's processors, kept in step with the chain.

A topology declares them with `Stores.key_value`, `Stores.window` and `Stores.session`; a task opens them over a backend
(see task_stores.py).
"""

from stage_writer.topologies.stores.backend import Backend, Changes, MemoryBackend
from stage_writer.topologies.stores.builders import StoreBuilder, StoreKind, Stores
from stage_writer.topologies.stores.key_value import KeyValueStore
from stage_writer.topologies.stores.keys import Key, Windowed
from stage_writer.topologies.stores.task_stores import TASK_STORE, Snapshot, TaskStores
from stage_writer.topologies.stores.timed import SessionStore, WindowStore
from stage_writer.topologies.stores.values import Value

__all__ = [
    "TASK_STORE",
    "Backend",
    "Changes",
    "Key",
    "KeyValueStore",
    "MemoryBackend",
    "SessionStore",
    "Snapshot",
    "StoreBuilder",
    "StoreKind",
    "Stores",
    "TaskStores",
    "Value",
    "WindowStore",
    "Windowed",
]
