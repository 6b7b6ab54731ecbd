"""The columns of a writer's streams: those that are known now, and followers for the others."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from structlog import get_logger
from structlog.typing import FilteringBoundLogger

from common.ports import Clock
from common.protoc import compile_protobuf
from common.settings import Settings, Stream
from common.settings.columns_from import ColumnsFrom
from common.settings.stores import stage_store, table_stores
from common.stage.markers import TableKind
from common.tables.dead_letters import DEAD_LETTER_SCHEMA
from stage_writer.columns.finding import ColumnDiscovery, ColumnFinder, columns_text, require_known
from stage_writer.columns.following import FollowedColumns, MakeConverter, PendingConverter
from stage_writer.columns.sampling import sample_records
from stage_writer.columns.schemas import FileSchema, RegistrySchemas, SchemaFinder
from stage_writer.convert import table_format
from stage_writer.fetch.schema_file import read_schema_file, require_packages
from stage_writer.fetch.schema_registry import SchemaRegistry
from stage_writer.ports import Converter


class ColumnsOfStreams:
    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Reads nothing yet."""
        self._settings = settings
        self._clock = clock
        stage = stage_store(settings)
        open_table = table_stores(settings)
        sample, open_registry = partial(sample_records, settings), partial(_registry, settings, clock)
        registry_url = str(settings.schema_registry.get("url", ""))
        self._finders: dict[str, ColumnDiscovery] = {}
        self._files: dict[str, FileSchema] = {}
        for stream in settings.streams:
            match stream.record.columns_from:
                case None:
                    continue
                case ColumnsFrom.REGISTRY:
                    schemas = RegistrySchemas(stream, registry_url, open_registry, compile_protobuf)
                    finder: ColumnDiscovery = SchemaFinder(schemas, stage, open_table, clock)
                case ColumnsFrom.SCHEMA_FILE:
                    self._files[stream.app_id] = file = FileSchema(stream, compile_protobuf)
                    finder = SchemaFinder(file, stage, open_table, clock)
                case _:
                    finder = ColumnFinder(stream, stage, open_table, sample, clock)
            self._finders[stream.app_id] = finder

    def read_file(self, stream: Stream) -> bytes | None:
        """The content of its `schema_file`: what its columns were taken from. Raises ConfigError."""
        file = self._files.get(stream.app_id)
        return read_schema_file(stream) if file is None else file.content

    def known(self) -> Settings:
        """The settings with the columns that are known now, before a record is read. Raises KafkaDeltaExpressError.

        Those of a registry are known once a record names its schema. Those of a file are agreed on.
        """
        return self._with(_at_start)

    def previewed(self) -> Settings:
        """The settings with the columns that a writer would use now. Raises KafkaDeltaExpressError."""
        return self._with(lambda finder: finder.preview())

    def required(self, app_id: str) -> Settings:
        """The settings with the columns of one stream. Raises ConfigError while they are not known."""
        return self._with(lambda finder: require_known(finder) if finder.stream.app_id == app_id else finder.stream)

    def _with(self, find: Callable[[ColumnDiscovery], Stream | None]) -> Settings:
        """The settings with the streams that ``find`` returns; the others are unchanged."""
        if not self._finders:
            return self._settings
        for finder in self._finders.values():
            require_packages(finder.stream)
        streams = (
            (find(self._finders[stream.app_id]) or stream) if stream.app_id in self._finders else stream
            for stream in self._settings.streams
        )
        return self._settings.model_copy(update={"streams": tuple(streams)})

    def lines(self, new_settings: Settings) -> Iterator[str]:
        """The lines of `check` about the columns in ``new_settings``, as `previewed` returned them."""
        for new in new_settings.streams:
            if new.app_id in self._finders:
                old = self._finders[new.app_id].stream
                yield columns_text(old, None if new.record.columns_from is not None else new)

    def followed(
        self, converters: Sequence[Converter], make: MakeConverter, log: FilteringBoundLogger
    ) -> dict[str, FollowedColumns]:
        """Finds missing and changed columns in the background. ``converters`` are those of `known`."""
        followed: dict[str, FollowedColumns] = {}
        for converter in converters:
            finder = self._finders.get(converter.stream.app_id)
            if finder is None:
                continue
            is_known = converter.stream.record.columns_from is None
            columns = FollowedColumns(finder, make, self._clock, log, converter.stream if is_known else None)
            if isinstance(converter, PendingConverter):
                converter.columns = columns
            followed[converter.stream.app_id] = columns
        return followed


def _at_start(finder: ColumnDiscovery) -> Stream | None:
    match finder.stream.record.columns_from:
        case ColumnsFrom.REGISTRY:
            return None
        case ColumnsFrom.SCHEMA_FILE:
            return finder.find(frozenset()).stream
        case _:
            return finder.known()


def pending(stream: Stream) -> PendingConverter:
    """The converter of a stream whose columns are not known yet."""
    return PendingConverter(stream, table_format(stream.dead_letters, TableKind.DEAD_LETTERS, DEAD_LETTER_SCHEMA, ()))


def _registry(settings: Settings, clock: Clock) -> SchemaRegistry:
    """A client that remembers nothing of earlier attempts, and waits for no answer longer than a request does."""
    types = ("JSON", "AVRO", "PROTOBUF")
    return SchemaRegistry(settings.schema_registry, clock, get_logger(), 0.0, resolves=types)
