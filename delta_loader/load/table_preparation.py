"""Makes a stream's tables ready for a load: created, with the columns that it needs; and the load's files are there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from common.settings import Stream
from common.settings.merging import settings_of_columns
from common.settings.values import Evolution
from common.stage.markers import Marker, StagedFile
from delta_loader.load.merged_keys import require_sequence
from delta_loader.load.schema_evolution import SchemaEvolution
from delta_loader.load.stream_tables import StreamTables
from delta_loader.load.vacuum_guard import VacuumGuard
from delta_loader.plan.held import Held, missing_file, stage_again
from delta_loader.plan.plan import Load, TableShape, shape_of, shapes_of
from delta_loader.tables.commits import Target, needed
from delta_loader.tables.load_modes.compatibility import require_compatible

if TYPE_CHECKING:
    from delta_loader.load.ports import Ports
from common.errors import NotCompatibleError
from common.schema import schema_from_json
from common.tables.clustering import clustering_problem
from common.tables.state import TableState
from delta_loader.ports import DeltaTables
from delta_loader.tables.load_modes.compatibility import differences
from delta_loader.tables.load_modes.layout import Layout, layout_of, like, with_statistics
from delta_loader.tables.load_modes.load_mode import choose_load_mode, require_loadable


class TablePreparation:
    def __init__(
        self, stream: Stream, ports: Ports, guard: VacuumGuard, tables: StreamTables, log: FilteringBoundLogger
    ) -> None:
        self._stream = stream
        self._ports = ports
        self._guard = guard
        self._tables = tables
        self._log = log
        self._evolution = SchemaEvolution.if_configured(stream, ports, log)
        self._creator = Creator(stream, ports.tables)

    def ensure(self, load: Load, urls: Collection[str] | None = None) -> None:
        """Create the tables that the load is the first to need; check that its files are compatible. Raises TableError.

        With ``urls``, only for these tables.
        """
        wanted = {
            pair for marker in load.markers for pair in shapes_of(marker).items() if urls is None or pair[0] in urls
        }
        if (
            self._tables.main is None and urls is None
        ):  # its txn actions are needed even if no record becomes a row of it
            wanted |= {
                (staged.url, shape_of(staged))
                for marker in load.markers
                for staged in marker.tables
                if staged.url == self._stream.table
            }
        in_order = sorted(((url, shape) for url, shape in wanted if url not in self._tables.failed), key=str)
        starts = {partition: run.start for partition, run in load.runs.items()}
        restage = stage_again(starts, below_table=urls is not None)
        missing = {url: shape for url, shape in reversed(in_order) if url not in self._tables.targets}
        for url, shape in missing.items():
            with self._tables.tried(url):
                self._creator.create(url, shape, restage)
                self._log.info("table created", table=url)
        if missing:
            self._tables.refresh()
        for url, shape in in_order:
            if url in self._tables.targets:
                with self._tables.tried(url):
                    if shape.merge is not None:
                        require_sequence(self._tables.targets[url], shape.merge, restage)
                    self._evolve(url, shape, load.markers)
                    self._require_compatible(self._tables.targets[url], shape, restage)

    def _require_compatible(self, table: Target, staged: TableShape, restage: str) -> None:
        casting = self._stream.evolution is not Evolution.STRICT and table.url != self._stream.dead_letters
        require_compatible(
            table.shape,
            staged,
            table.url,
            table.load_mode,
            casting=casting,
            restage=restage,
            settings=settings_of_columns(self._stream.at(table.url)),
        )
        if self._ports.merged_keys is not None and staged.merge is not None:
            self._ports.merged_keys.require(table, staged.merge)

    def _evolve(self, url: str, shape: TableShape, markers: Sequence[Marker]) -> None:
        if self._evolution is None:
            return
        if self._evolution.evolve(self._tables.targets[url], shape, markers):
            self._tables.read(url)
        if self._evolution.alter(self._tables.targets[url], shape):
            self._tables.read(url)

    def missing_files(self, load: Load, urls: Iterable[str] | None = None) -> Callable[[Marker], Held | None]:
        """Check every file that the load would add to ``urls``, or to all tables; one that is damaged holds its marker.

        A table that is left out by now is passed over.
        """
        gone: dict[object, tuple[str, str]] = {}
        for url in [url for url in (self._tables.targets if urls is None else urls) if url in self._tables.targets]:
            with self._tables.tried(url):
                gone |= self._missing_of(load, self._tables.targets[url])

        def reason_of(marker: Marker) -> Held | None:
            if marker.name not in gone:
                return None
            path, damage = gone[marker.name]
            partition, main = marker.name.topic_partition, self._tables.main
            position = None if main is None else main.ids(self._tables.ids).position(main.transactions, partition)
            return missing_file(partition, marker.span.start, path, damage, position=position, table=self._stream.table)

        return reason_of

    def _missing_of(self, load: Load, target: Target) -> Mapping[object, tuple[str, str]]:
        """Each marker with a file that cannot be added: the file's path, and its damage."""
        ids = self._tables.ids
        files = [(marker, file) for marker in load.markers for file in needed(target, ids, load, marker).files]
        if not files:
            return {}
        store = self._ports.open_store(target.url)

        def damage_of(item: tuple[Marker, StagedFile]) -> str | None:
            file_store = self._ports.stage.store if item[1].is_mixed else store
            return self._guard.damage(file_store, target.url, item[1])

        seen = self._ports.parallel(damage_of, files)
        return {marker.name: (file.path, damage) for (marker, file), damage in zip(files, seen, strict=True) if damage}


class Creator:
    def __init__(self, stream: Stream, tables: DeltaTables) -> None:
        self._stream = stream
        self._tables = tables

    def create(self, url: str, staged: TableShape, restage: str = "") -> None:
        """Create an empty table for the staged rows; does nothing when it exists. Raises TableError.

        ``restage`` is the commands that stage the rows again.
        """
        stream = self._stream.at(url)
        if url == stream.dead_letters or not (
            stream.layout.table_properties or stream.layout.cluster_by or stream.layout.template
        ):
            self._tables.create(url, staged)
        elif stream.layout.template is None:
            self._make(url, staged, layout_of(stream), nullable=True)
        else:
            shape, layout = self._like(url, stream.layout.template, staged, restage)
            self._make(url, shape, layout, nullable=False)

    def _make(self, url: str, shape: TableShape, layout: Layout, *, nullable: bool) -> None:
        columns = schema_from_json(shape.schema)
        problem = clustering_problem(columns, layout.cluster_by)
        if problem is not None:
            msg = f"the Delta table {url} cannot be created: {problem}"
            raise NotCompatibleError(msg, f"change {self._stream.key_of(url, 'cluster_by')}")
        self._tables.make(url, shape, with_statistics(layout, columns), nullable=nullable)

    def _like(self, url: str, model: str, staged: TableShape, restage: str) -> tuple[TableShape, Layout]:
        template = self._tables.template(model)
        if template is None:
            msg = f"the template {model} of the Delta table {url} does not exist"
            raise NotCompatibleError(msg, f"create it, or name another table in {self._stream.key_of(url, 'template')}")
        shape, layout = like(template, self._stream.at(url))
        new = TableState(0, "", shape.schema, shape.partition_by, layout.properties, 1, 2, frozenset())
        load_mode = choose_load_mode(new, self._stream.load_of(url))
        require_loadable(load_mode, model)
        if self._stream.evolution is Evolution.STRICT:
            problems = differences(shape, staged, load_mode)
            if problems:
                msg = f"a table like {model} would not accept the rows staged for {url}: {'; '.join(problems)}"
                columns = self._stream.key_of(url, "columns")
                raise NotCompatibleError(
                    msg, f"change the template, or {columns}{f' and {restage}' if restage else ''}"
                )
        return shape, layout
