"""The kind of world of a history."""

from collections.abc import Callable, Mapping
from enum import StrEnum

from tests.simulation.appearing import Appearing
from tests.simulation.backfilled import Backfilled
from tests.simulation.changelog import InTopic
from tests.simulation.changes import Changes
from tests.simulation.dead_letter_topic import DeadLetterTopic
from tests.simulation.disks import OnDisk
from tests.simulation.elements import ExplodedChanges
from tests.simulation.filling import Filling
from tests.simulation.hostile import Hostile
from tests.simulation.joined import Joined
from tests.simulation.kinds import Context, Counting, Evolving, Kind, Routed
from tests.simulation.notified import Notified
from tests.simulation.refusing import RefusalPorts
from tests.simulation.replayed import Replayed
from tests.simulation.shared import Shared
from tests.simulation.world import PROFILES


class Worlds(StrEnum):
    """Worlds of one kind, or of a few by the seed."""

    PLAIN = "plain"
    """Rows and dead letters; 40 % with several tables, 24 % with records that gain fields."""
    ROUTED = "routed"
    """The plain ones with several tables."""
    EVOLVING = "evolving"
    """The plain ones with records that gain fields."""
    TASKS = "tasks"
    """Stateful tasks."""
    DISKS = "disks"
    """The same, with their state on disk."""
    TOPIC = "topic"
    """The same, with their changes in a Kafka topic."""
    FILLING = "filling"
    """Tasks that fill several tables, each with columns and a layout of its own."""
    CHANGES = "changes"
    """Change events, merged by key."""
    REFUSING = "refusing"
    """Appends to tables with constraints, and files of many partition values."""
    DEAD_LETTER_TOPIC = "dead letter topic"
    """The same, with a topic for dead letters, which loses answers and is away at times."""
    JOINED = "joined"
    """Tasks that write to a topic, most of which read two as one chain."""
    NOTIFIED = "notified"
    """Loaders that load when they are notified of markers, by a control topic that loses notifications."""
    HOSTILE = "hostile"
    """Plain records, and clean-ups, VACUUMs, RESTOREs, retention, long outages, torn objects and more around them."""
    BACKFILLED = "backfilled"
    """Streams that start at the end of their topics, and operators who backfill earlier records later."""
    APPEARING = "appearing"
    """Tables that appear with the values of `route`, up to a limit that all writers agree on."""
    ELEMENTS = "elements"
    """Change events of records with arrays, whose elements are the rows."""
    REPLAYED = "replayed"
    """Several tables, and operators who replay ranges and dead letters by configs that are edited."""
    SHARED = "shared"
    """Two streams that read one topic, by configs that are edited."""
    EDITED = "edited"
    """Operators who edit configs, over tables that others use too; a history of its own (editing.py)."""
    REGROUPED = "regrouped"
    """Operators who change which topics a topology reads together; a history of its own (regrouped.py)."""


def _plain(context: Context) -> Kind:
    rng = context.world.rng
    routed = rng.random() < 0.4
    evolving = not routed and rng.random() < 0.4
    return Routed(context) if routed else Evolving(context) if evolving else Kind(context)


_KINDS: Mapping[Worlds, Callable[[Context], Kind]] = {
    Worlds.PLAIN: _plain,
    Worlds.ROUTED: Routed,
    Worlds.EVOLVING: Evolving,
    Worlds.TASKS: Counting,
    Worlds.DISKS: OnDisk,
    Worlds.TOPIC: InTopic,
    Worlds.FILLING: Filling,
    Worlds.CHANGES: Changes,
    Worlds.REFUSING: RefusalPorts,
    Worlds.DEAD_LETTER_TOPIC: DeadLetterTopic,
    Worlds.JOINED: Joined,
    Worlds.NOTIFIED: Notified,
    Worlds.HOSTILE: Hostile,
    Worlds.BACKFILLED: Backfilled,
    Worlds.APPEARING: Appearing,
    Worlds.ELEMENTS: ExplodedChanges,
    Worlds.REPLAYED: Replayed,
    Worlds.SHARED: Shared,
}


def kind_of(worlds: Worlds, context: Context) -> Kind:
    return _KINDS[worlds](context)


def default_kind(seed: int) -> Worlds:
    """The default kind of world of a seed; every other is plain. (The profile is ``seed % 8``.)"""
    kinds = [worlds for worlds in Worlds if worlds is not Worlds.PLAIN]
    cycle = seed // len(PROFILES)
    return Worlds.PLAIN if cycle % 2 == 0 else kinds[cycle // 2 % len(kinds)]
