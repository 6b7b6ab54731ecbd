"""The columns of a stream's records by schemas, for `columns: from_registry` and `from_schema_file`.

Rules:

1. Of a registry, the schemas that records name count, and the latest of each topic's subject (``<topic>-value``), so
   that the first table has its fields too. A schema of another format is passed over: its records are dead letters.
   A file is read once per process, so that the columns are those of the schema that records are decoded by.
2. An id says nothing without its registry, and the part of a schema that has the columns depends on `message` and the
   envelope. So ids are agreed on behind a digest of these settings, and after an edit the columns of the same ids are
   added again; until then no columns are known. Ids in front of the first digest are of any settings.
3. Columns only grow: a later schema adds fields and widens numbers (`grown`); fields that it lacks stay, because
   records of earlier schemas may follow. With `unknown_fields: evolve`, a column that a field gained before a schema
   had it keeps its type too.
4. With `envelope: debezium`, the columns are those of the row's image in the event. Where the settings leave the
   envelope to the records, the first schemas decide, and the writers agree on it with the columns. The schema of
   another message (a heartbeat) has no columns: the opener passes that over, or refuses it.
5. Writers agree on each step in the stage, by exclusive create of the next version (common/stage/versions.py).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

from common.errors import ConfigError, RegistryError, SchemaError
from common.ports import Clock, ObjectStore
from common.schema import ArrayType, DataType, MapType, StructType
from common.schema.avro import avro_columns, parse_avro
from common.schema.evolution import NO_COLUMNS, extended, type_at
from common.schema.json_schema import json_schema_columns
from common.schema.naming import restricted
from common.schema.protobuf import find_message, protobuf_columns
from common.schema.widening import widened
from common.settings import Stream
from common.settings.envelopes import DEBEZIUM, DEBEZIUM_PARTS, is_envelope_open
from common.settings.formats import path_steps
from common.settings.own_columns import columns_at
from common.stage.versions import AgreedColumns, agreed_columns, latest
from common.tables.stream_columns import columns_as_agreed, state_of, with_envelope
from stage_writer.columns.finding import DiscoveredColumns
from stage_writer.decode.binary.protobuf import Compile
from stage_writer.decode.envelopes.framing import RegisteredSchema, SchemaKey
from stage_writer.fetch.schema_file import read_schema_file
from stage_writer.fetch.schema_registry import SchemaRegistry
from stage_writer.layers import text_of

Columns = tuple[StructType, Mapping[str, str]]
"""Columns, and the forms of values that their types leave open, by path."""

_IMAGE = "after"
_DIGEST = "sha256:"


@dataclass(frozen=True, slots=True)
class RegistrySchemas:
    """The schemas of a registry."""

    stream: Stream
    url: str
    open_registry: Callable[[], SchemaRegistry]
    compile_protobuf: Compile

    def required(self, _stream: Stream) -> frozenset[SchemaKey]:
        """Always None: the schemas that records name decide."""
        return frozenset()

    def covered(self, stream: Stream, agreed: AgreedColumns) -> frozenset[SchemaKey]:
        """The schemas whose fields by today's settings are among the columns: ids that follow their digest (rule 2)."""
        ids: set[SchemaKey] = set()
        is_of_settings, settings = True, _digest(stream, self.url.encode())
        for key in agreed.schema_ids:
            if str(key).startswith(_DIGEST):
                is_of_settings = key == settings
            elif is_of_settings:
                ids.add(key)
        return frozenset(ids)

    def columns(
        self, stream: Stream, covered: frozenset[SchemaKey], ids: frozenset[SchemaKey]
    ) -> dict[SchemaKey, Columns]:
        """The columns of the schemas that are not ``covered``, by their ids (rule 1). Raises RegistryError."""
        registry, kind = self.open_registry(), self.stream.record.format.upper()
        schemas: dict[SchemaKey, RegisteredSchema] = {}
        if not covered and self.stream.pattern is None:
            newest = (registry.latest_of(f"{topic}-value") for topic in self.stream.topics)
            schemas = {version[0]: version[1] for version in newest if version is not None and version[1].type == kind}
        more = sorted(ids.difference(covered, schemas), key=str)
        types = registry.types_of(more) if more else {}
        schemas |= {schema: registry.schema_of(schema) for schema in more if types[schema] == kind}
        columns = {
            key: _named_columns(stream, f"the schema {key}", schema, self.compile_protobuf)
            for key, schema in schemas.items()
        }
        return {_digest(stream, self.url.encode()): (NO_COLUMNS, {}), **columns} if columns else {}


@dataclass(frozen=True)
class FileSchema:
    """The schema in the stream's `schema_file`."""

    stream: Stream
    compile_protobuf: Compile

    @cached_property
    def content(self) -> bytes:
        """Raises ConfigError for a file that cannot be read."""
        return read_schema_file(self.stream) or b""

    def required(self, stream: Stream) -> frozenset[SchemaKey]:
        return frozenset({_digest(stream, self.content)})

    def covered(self, _stream: Stream, agreed: AgreedColumns) -> frozenset[SchemaKey]:
        return frozenset(agreed.schema_ids)

    def columns(
        self, stream: Stream, _covered: frozenset[SchemaKey], _ids: frozenset[SchemaKey]
    ) -> dict[SchemaKey, Columns]:
        """The columns of the file, by its digest. Raises ConfigError."""
        name = f"schema_file {self.stream.record.schema_file}"
        columns = _named_columns(stream, name, self.content, self.compile_protobuf)
        return dict.fromkeys(self.required(stream), columns)


@dataclass(frozen=True, slots=True)
class SchemaFinder:
    """A `ColumnDiscovery` of a stream with columns from schemas."""

    schemas: RegistrySchemas | FileSchema
    stage: ObjectStore
    open_table: Callable[[str], ObjectStore]
    clock: Clock

    @property
    def stream(self) -> Stream:
        return self.schemas.stream

    def known(self) -> Stream | None:
        agreed = agreed_columns(self.stage, self.stream.app_id)
        if agreed is None:
            return None
        stream = self._opened(agreed)
        covered = self.schemas.covered(stream, agreed)
        return self._with(agreed) if covered and covered.issuperset(self.schemas.required(stream)) else None

    def preview(self) -> Stream | None:
        agreed = agreed_columns(self.stage, self.stream.app_id)
        proposed = self._next(agreed, frozenset())
        return None if proposed is None else self._with(proposed)

    def find(self, ids: frozenset[SchemaKey]) -> DiscoveredColumns:
        while True:
            agreed = agreed_columns(self.stage, self.stream.app_id)
            proposed = self._next(agreed, ids)
            if proposed is None:
                app_id = self.stream.app_id
                msg = f"the registry has no {self.stream.record.format} schema yet for the records of {app_id}"
                raise RegistryError(msg, f"register one, or declare the columns of {app_id}")
            covered = self.schemas.covered(self._opened(proposed), proposed)
            columns = DiscoveredColumns(self._with(proposed), covered)
            if proposed is agreed or proposed.create(self.stage):
                return columns

    def _next(self, agreed: AgreedColumns | None, ids: frozenset[SchemaKey]) -> AgreedColumns | None:
        """The columns with those of more schemas; the agreed ones if no schema is new. Raises RegistryError."""
        stream = self._opened(agreed)
        ids |= self.schemas.required(stream)
        covered = frozenset[SchemaKey]() if agreed is None else self.schemas.covered(stream, agreed)
        if covered and ids.issubset(covered):
            return agreed
        schemas, envelope = self.schemas.columns(stream, covered, ids), None if agreed is None else agreed.envelope
        if not schemas:
            return agreed
        if agreed is None and is_envelope_open(stream) and _are_of_events(schemas):
            envelope = DEBEZIUM
            schemas = self.schemas.columns(with_envelope(stream, envelope), covered, ids)
        known, forms = (NO_COLUMNS, {}) if agreed is None else (agreed.columns, agreed.formats)
        more, gained = list(schemas.values()), self._gained()
        for later, _ in more:
            known = extended(known, restricted(gained, later))
        columns, formats = joined((known, forms), more)
        if not columns.fields:
            msg = f"{self.stream.app_id}: no columns can be derived from the schemas of its records"
            if stream.record.has_events:
                msg += f", of which none has a field {_IMAGE!r}, as those of Debezium events do"
            raise ConfigError(msg, "remove envelope, or declare the columns yourself")
        version, before = (0, ()) if agreed is None else (agreed.version, agreed.schema_ids)
        source, now_ms = self.stream.record.columns.strip(), self.clock.wall_ms()
        return AgreedColumns(
            self.stream.app_id, version + 1, columns, source, now_ms, dict(formats), (*before, *schemas), envelope
        )

    def _opened(self, agreed: AgreedColumns | None) -> Stream:
        """The stream with the envelope of its records (rule 4)."""
        return self.stream if agreed is None else with_envelope(self.stream, agreed.envelope)

    def _gained(self) -> StructType:
        """What the main table has gained."""
        stream = self.stream
        if not stream.record.evolves:
            return NO_COLUMNS
        evolved = latest(self.stage, stream.app_id, by_route=stream.gains_by_table)
        return NO_COLUMNS if evolved is None else columns_at(stream, stream.table, evolved.columns)

    def _with(self, agreed: AgreedColumns) -> Stream:
        return columns_as_agreed(self.stream, agreed, state_of(self.stream, self.open_table))


def _digest(stream: Stream, source: bytes) -> str:
    """A digest of what a schema's columns depend on: settings, and a file's content or a registry's URL."""
    parts = ((stream.record.message or "").encode(), stream.record.envelope.encode(), source)
    return f"{_DIGEST}{sha256(bytes(1).join(parts)).hexdigest()}"


def _are_of_events(schemas: Mapping[SchemaKey, Columns]) -> bool:
    """Whether each schema is that of a change event of Debezium."""
    of_records = [columns for columns, _ in schemas.values() if columns.fields]
    images = [columns.field(_IMAGE) for columns in of_records if DEBEZIUM_PARTS.issubset(columns.names)]
    return len(images) == len(of_records) and all(isinstance(image and image.type, StructType) for image in images)


def _named_columns(stream: Stream, name: str, schema: RegisteredSchema | bytes, compile_protobuf: Compile) -> Columns:
    try:
        return columns_of_schema(stream, schema, compile_protobuf)
    except SchemaError as error:
        msg = f"{stream.app_id}: no columns can be derived from {name}: {error.problem}"
        raise ConfigError(msg, error.remedy) from None


def columns_of_schema(stream: Stream, schema: RegisteredSchema | bytes, compile_protobuf: Compile) -> Columns:
    """The columns for records of a schema, or of a file's content. Raises SchemaError if a schema gives none."""
    try:
        columns, formats = _of_messages(stream, schema, compile_protobuf)
    except RecursionError:
        raise SchemaError("the schema is nested too deeply", "declare the columns yourself") from None
    if not stream.record.has_events:
        return columns, formats
    if DEBEZIUM_PARTS.isdisjoint(columns.names):
        return NO_COLUMNS, {}
    image = columns.field(_IMAGE)
    if image is None or not isinstance(image.type, StructType):
        msg = f"the schema has no field {_IMAGE!r} with the row's columns, as Debezium events do"
        raise SchemaError(msg, "remove envelope, or declare the columns yourself")
    prefix = f"{_IMAGE}."
    return image.type, {path.removeprefix(prefix): form for path, form in formats.items() if path.startswith(prefix)}


def _of_messages(stream: Stream, schema: RegisteredSchema | bytes, compile_protobuf: Compile) -> Columns:
    if stream.record.format == "protobuf":
        content, imports = (schema, {}) if isinstance(schema, bytes) else (schema.text, dict(schema.references))
        return protobuf_columns(find_message(compile_protobuf(content, imports), stream.record.message or (0,))), {}
    text, references = (text_of(schema), ()) if isinstance(schema, bytes) else (schema.text, schema.references)
    if stream.record.format == "avro":
        return avro_columns(parse_avro(text, [reference for _, reference in references])), {}
    return json_schema_columns(text, references)


def joined(known: Columns, more_columns: Iterable[Columns]) -> Columns:
    """Columns that have grown by others, one after the other (rule 3)."""
    columns, formats = known
    for later, more in more_columns:
        new = {path: form for path, form in more.items() if type_at(columns, path_steps(path)) is None}
        columns, formats = grown(columns, later), {**formats, **new}
    return columns, formats


def grown(known: StructType, later: StructType) -> StructType:
    """The columns with the fields of ``later`` that they lack, and with its numbers where these are wider (rule 3)."""
    wider = tuple(
        field if (new := later.field(field.name)) is None else replace(field, type=_wider(field.type, new.type))
        for field in known
    )
    return extended(StructType(wider), later)


def _wider(known: DataType, later: DataType) -> DataType:
    match known, later:
        case StructType(), StructType():
            return grown(known, later)
        case ArrayType(), ArrayType():
            return replace(known, element=_wider(known.element, later.element))
        case MapType(), MapType():
            return replace(known, value=_wider(known.value, later.value))
        case _:
            return widened(known, later) or known
