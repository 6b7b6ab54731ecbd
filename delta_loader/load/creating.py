"""Creates a stream's tables for rows with the configured properties and clustering, or modeled on another table.

The rules are those of tables/load_modes/layout.py. A stream without these settings gets tables with defaults.
"""

from common.errors import NotCompatibleError
from common.schema import schema_from_json
from common.settings import Stream
from common.settings.values import Evolution
from common.tables.clustering import clustering_problem
from common.tables.state import TableState
from delta_loader.plan.plan import TableShape
from delta_loader.ports import DeltaTables, TableMaker
from delta_loader.tables.load_modes.compatibility import differences
from delta_loader.tables.load_modes.layout import Layout, layout_of, like, with_statistics
from delta_loader.tables.load_modes.load_mode import choose_load_mode, require_loadable


class Creator:
    def __init__(self, stream: Stream, tables: DeltaTables, maker: TableMaker | None) -> None:
        self._stream = stream
        self._tables = tables
        self._maker = maker

    def create(self, url: str, staged: TableShape, restage: str = "") -> None:
        """Create an empty table for the staged rows; does nothing when it exists. Raises TableError.

        ``restage`` is passed on to `require_suitable`.
        """
        stream = self._stream.at(url)
        if url == stream.dead_letters or not (
            stream.layout.table_properties or stream.layout.cluster_by or stream.layout.template
        ):
            self._tables.create(url, staged)
        elif self._maker is None:
            msg = f"the Delta table {url} cannot be created as the stream describes it"
            raise NotCompatibleError(msg, "create it, or remove table_properties, cluster_by and template")
        elif stream.layout.template is None:
            self._make(self._maker, url, staged, layout_of(stream), nullable=True)
        else:
            shape, layout = self._like(url, stream.layout.template, staged, restage)
            self._make(self._maker, url, shape, layout, nullable=False)

    def _make(self, maker: TableMaker, url: str, shape: TableShape, layout: Layout, *, nullable: bool) -> None:
        columns = schema_from_json(shape.schema)
        problem = clustering_problem(columns, layout.cluster_by)
        if problem is not None:
            msg = f"the Delta table {url} cannot be created: {problem}"
            raise NotCompatibleError(msg, f"change {self._stream.key_of(url, 'cluster_by')}")
        maker.make(url, shape, with_statistics(layout, columns), nullable=nullable)

    def _like(self, url: str, model: str, staged: TableShape, restage: str) -> tuple[TableShape, Layout]:
        template = None if self._maker is None else self._maker.template(model)
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
