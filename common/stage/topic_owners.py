"""The owners of topics that several streams read, as all programs agree on them in the stage.

Rules:

1. ``shared/<topic>.json`` names the stream whose chains have the topic's own name (common/stage/merged.py, rule 4). The
   object is made by exclusive create when a config first has several streams that read the topic. It never changes: not
   when the config's streams change their order, and not when the owner leaves the config or comes back.
2. The owner is the stream that has chains of the topic already, as their markers say. Without chains, it is the first
   stream of the config. If there are chains, and nothing says that they are of a stream of the config that reads the
   topic, nothing is decided: a stream that was renamed would otherwise begin again.
3. A program reads these objects before it asks which chains are a stream's. A config without shared topics costs one
   listing at its start, and no object.
4. A stream with another app_id is another stream, with chains of its own. It is refused if another stream has staged
   the topic for its table: the stream was renamed, or got the other stream's table, which has the same records. For
   tables that the stream has staged for itself, the newest markers decide. For other tables, which it may have got by
   an edit, each marker of another stream counts.
5. An older release refuses a config in which streams share a topic. With one of these streams alone, it reads and
   stages the plain chains, whose markers name their stream: a loader holds the markers of another stream
   (``other_stream``).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from common.errors import ConfigError, MarkerError
from common.ports import ObjectStore
from common.settings import Settings, Stream
from common.settings.overlap import owned_by_others, readers, shared_topics
from common.stage.chain_origins import origins_of_topic
from common.stage.marker_contents import listed_markers, manifest_of
from common.stage.markers import DONE, Manifest, MarkerName, markers_of_topic
from common.stage.merged import topics_of
from common.stage.stored import read_object
from common.stored_types import StoredForm
from common.tables.urls import comparable

SHARED = "shared"
_READ_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class _TopicOwner:
    owner: str


_FORM = StoredForm(_TopicOwner)


def owner_path(topic: str) -> str:
    return f"{SHARED}/{topic}.json"


ReadMarkers = Callable[[Callable[[str], bytes | None], Sequence[str]], Sequence[bytes | None]]


def _in_turn(read: Callable[[str], bytes | None], paths: Sequence[str]) -> Sequence[bytes | None]:
    return [read(path) for path in paths]


class StageTopicOwners:
    """The owners in a stage, for the streams of some settings, which know what this reads (`Settings.owners`)."""

    def __init__(self, settings: Settings, store: ObjectStore, *, make: bool, parallel: ReadMarkers = _in_turn) -> None:
        """``make``: agree on owners; without it no object is made, and an owner is only what it would be now.

        ``parallel`` reads several markers at a time.
        """
        self._settings = settings
        self._store = store
        self._parallel = parallel
        self._make = make
        self._owners_read = False

    def read_all(self) -> None:
        """Read the owners of topics that were shared, and agree on those of topics that several streams name (rule 3).

        Raises StoreError, MarkerError, and ConfigError for a topic that cannot be shared.
        """
        if self._owners_read:
            return
        self._settings.owners.add(_known(self._store))
        named = {topic for stream in self._settings.streams if stream.pattern is None for topic in stream.topics}
        self.require(named)
        self._require_own_tables()
        self._owners_read = True

    def _require_own_tables(self) -> None:
        """Raises ConfigError for a stream with a table of another one (rule 4). Lists all markers of shared topics."""
        owners = self._settings.owners.by_topic
        shared = [(topic, stream) for topic in owners for stream in self._settings.streams if stream.reads(topic)]
        listed: dict[str, list[tuple[MarkerName, str]]] = {}
        for name, path in listed_markers(self._store, f"{DONE}/") if shared else ():
            listed.setdefault(str(name.topic_partition.topic), []).append((name, path))
        for topic, stream in shared:
            own = stream.chain_of(topic)
            unproved = self._not_staged_for(stream, listed.get(own, ()))
            for chain in sorted(listed):
                if topics_of(chain) == (topic,) and chain != own:
                    manifest = self._that_names(unproved, listed[chain]) or self._newest_with_tables(listed[chain])
                    if manifest is not None and manifest.app_id != stream.app_id:
                        self._require_another(topic, stream, chain, manifest, is_new=own not in listed)

    def _require_another(self, topic: str, stream: Stream, chain: str, manifest: Manifest, *, is_new: bool) -> None:
        """Raises ConfigError if another stream's chain is for a table of this one; or for none yet, if that is gone."""
        tables = {comparable(table.url) for table in manifest.tables}
        is_gone = manifest.app_id not in {stream.app_id for stream in self._settings.streams}
        if tables.isdisjoint(map(comparable, stream.tables)) and (tables or not (is_gone and is_new)):
            return
        gone = ", which is no longer a stream of the config," if is_gone else ""
        what = (
            f"has staged the topic {topic!r} for a table of the stream {stream.app_id!r}"
            if tables
            else f"has chains of the topic {topic!r} that name no table, and the stream {stream.app_id!r} has none"
        )
        what += ", which has not" if tables and is_new else ""
        msg = f"{manifest.app_id!r}{gone} {what}: records would be loaded twice"
        own = f", or give {stream.app_id!r} tables of its own" if tables else ""
        if not (is_gone and is_new):
            raise ConfigError(msg, f"put the table of {stream.app_id!r} back{own}")
        raise ConfigError(
            msg,
            f"write app_id: {manifest.app_id} again{own}; to begin {stream.app_id!r} at its start, delete "
            f"{DONE}/{chain}/ from the stage once all of it is loaded",
        )

    def _not_staged_for(self, stream: Stream, listed: Collection[tuple[MarkerName, str]]) -> frozenset[str]:
        """The stream's tables that the newest marker of none of its partitions names; ``listed`` is its own chain."""
        newest = {name.topic_partition: (name, path) for name, path in sorted(listed)}
        named = {
            comparable(table.url)
            for manifest in self._manifests(newest.values())
            if manifest.app_id == stream.app_id
            for table in manifest.tables
        }
        return frozenset(map(comparable, stream.tables)) - named

    def _that_names(self, tables: frozenset[str], listed: Collection[tuple[MarkerName, str]]) -> Manifest | None:
        """The newest manifest that names one of these tables."""
        if not tables:
            return None
        return next(
            (
                manifest
                for manifest in self._manifests(sorted(listed, reverse=True))
                if not tables.isdisjoint(comparable(table.url) for table in manifest.tables)
            ),
            None,
        )

    def _manifests(self, listed: Iterable[tuple[MarkerName, str]], at_once: int = _READ_AT_ONCE) -> Iterator[Manifest]:
        """The contents of markers, in this order: a chain may have those of a day."""
        waiting = iter(listed)
        while batch := list(islice(waiting, at_once)):
            contents = self._parallel(self._store.read, [path for _, path in batch])
            for (name, _), data in zip(batch, contents, strict=True):
                manifest = manifest_of(name, data)
                if manifest is not None:
                    yield manifest

    def _newest_with_tables(self, listed: Collection[tuple[MarkerName, str]]) -> Manifest | None:
        """The newest of a chain's manifests that names tables; without one, the newest of all. Of any partition."""
        newest: Manifest | None = None
        by_start = sorted(listed, key=lambda chain: (chain[0].start, chain[0].topic_partition), reverse=True)
        for manifest in self._manifests(by_start, at_once=1):
            if manifest.tables:
                return manifest
            newest = newest or manifest
        return newest

    def require(self, topics: Collection[str]) -> None:
        """Agree on the owners of those topics that several streams read.

        Raises StoreError, MarkerError, and ConfigError for one that cannot be shared.
        """
        for error in self.agree(topics).values():
            raise error

    def agree(self, topics: Collection[str]) -> Mapping[str, ConfigError]:
        """Agree on the owners of those topics that several streams read.

        Returns the topics that cannot be shared, and why; also those that were shared, and that a stream cannot read
        because another one owns them. Raises StoreError and MarkerError.
        """
        owners = self._settings.owners
        refused = shared_topics(self._settings.streams, topics)
        refused |= owned_by_others(self._settings.streams, topics, owners.by_topic)
        for topic, reading_it in readers(self._settings.streams, topics).items():
            if topic in owners.by_topic or topic in refused:
                continue
            try:
                (owners.add if self._make else owners.expect)({topic: self._agreed(topic, reading_it)})
            except ConfigError as error:
                refused[topic] = error
        return refused

    def _agreed(self, topic: str, reading_it: Collection[Stream]) -> str:
        path = owner_path(topic)
        data = self._store.read(path)
        if data is None:
            owner = self._by_chains(topic, reading_it) or next(stream.app_id for stream in reading_it)
            if not self._make:
                return owner
            self._store.create(path, _FORM.to_bytes(_TopicOwner(owner)))
            data = self._store.read(path)  # made here, or by another program
        if data is None:
            msg = f"{path} was deleted from the stage while this program made it"
            raise MarkerError(msg, "run it again, and leave the folder alone: it names each topic's owner")
        return _owner(path, data)

    def _by_chains(self, topic: str, reading_it: Collection[Stream]) -> str | None:
        """The stream to which existing chains belong (rule 2), or None."""
        listed = sorted(listed_markers(self._store, markers_of_topic(topic)), reverse=True)
        app_id = next((manifest.app_id for manifest in self._manifests(listed, at_once=1)), None)
        if app_id is None and not listed and next(iter(self._store.list(origins_of_topic(topic))), None) is None:
            return None
        if app_id in {stream.app_id for stream in reading_it}:
            return app_id
        named = " or ".join(repr(stream.app_id) for stream in reading_it)
        ownership = "they do not name their stream" if app_id is None else f"they belong to {app_id!r}"
        msg = f"the stage has chains of the topic {topic!r}, which {named} are to share now, and {ownership}"
        content = _FORM.to_bytes(_TopicOwner(app_id or "APP_ID")).decode()
        raise ConfigError(
            msg,
            "leave one stream that reads the topic until it has staged a record; or write "
            f"{content} as {owner_path(topic)} into the stage, with the app_id of the stream that has staged the "
            "topic's records so far: every other stream then begins at its start",
        )


def _known(store: ObjectStore) -> dict[str, str]:
    """The app_id of each owner, by topic."""
    paths = [item.path for item in store.list(f"{SHARED}/") if item.path.endswith(".json")]
    owners = {path: _owner(path, data) for path in paths if (data := store.read(path)) is not None}
    return {path.removeprefix(f"{SHARED}/").removesuffix(".json"): owner for path, owner in owners.items()}


def _owner(path: str, data: bytes) -> str:
    remedy = "restore its content: the owner of the topic's chains, which their markers name too (app_id)"
    return read_object(_FORM, path, data, remedy).owner
