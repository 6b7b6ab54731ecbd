"""Delta tables in memory: the port's contract without a JVM. The contract suite runs over this and over Spark."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from common.errors import TableError
from common.schema import StructType, nullable_columns, schema_from_json, schema_to_json
from common.schema.evolution import Addition, with_additions
from common.spans import Position
from common.tables.history import LoggedCommit
from common.tables.state import TableState
from delta_loader.plan.plan import TableShape
from delta_loader.ports import DeltaTables
from delta_loader.tables.commits import AlreadyLoaded, CommitOutcome, Committed, Conflicted, TableCommit
from delta_loader.tables.load_modes.casting import Widening
from delta_loader.tables.load_modes.layout import Layout, Template


@dataclass
class MemoryTable:
    table_id: str
    schema: str
    partition_by: tuple[str, ...]
    commits: list[TableCommit] = field(default_factory=list)
    transactions: dict[str, int] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    protocol: tuple[int, frozenset[str]] = (2, frozenset())
    """The minimum writer version and the table features."""

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.parts]

    @property
    def parts(self) -> list[tuple[str, Position]]:
        """Every loaded file, once a load, with the first offset whose rows are in the table."""
        added = [(file.path, Position(0)) for commit in self.commits for file in commit.files]
        writes = [write for commit in self.commits for write in commit.written]
        return added + [(file.path, write.start or Position(0)) for write in writes for file in write.files]


class PassedOn:
    """Tables whose commits a subclass carries out; the rest is passed on."""

    def __init__(self, tables: DeltaTables) -> None:
        self._tables = tables
        self.state, self.history, self.create = tables.state, tables.history, tables.create
        self.make, self.template = tables.make, tables.template
        self.add_columns, self.widen = tables.add_columns, tables.widen


class MemoryDeltaTables:
    """`delta_loader.ports.DeltaTables` in a dictionary."""

    def __init__(self, meanwhile: Callable[[TableCommit], CommitOutcome | None] = lambda _: None) -> None:
        """``meanwhile`` is called before each commit; an outcome that it returns replaces the commit's own."""
        self.meanwhile = meanwhile
        self.tables: dict[str, MemoryTable] = {}
        self._made = 0

    def state(self, url: str) -> TableState | None:
        table = self.tables.get(url)
        if table is None:
            return None
        return TableState(
            version=self.version(url),
            table_id=table.table_id,
            schema=table.schema,
            partition_by=table.partition_by,
            properties=dict(table.properties),
            reader_version=1,
            writer_version=table.protocol[0],
            features=table.protocol[1],
            transactions=dict(table.transactions),
        )

    def version(self, url: str) -> int:
        return len(self.tables[url].commits)

    def begun(self, url: str, partition: str) -> list[int]:
        """Where the files of a partition (``orders-0``) begin that a table has, each as often as it has it."""
        names = [path.rpartition("/")[2] for path in self.tables[url].paths if f"{partition}-" in path]
        return sorted(int(name.removeprefix(f"{partition}-")[:20]) for name in names)

    def history(self, url: str, newest: int) -> Iterator[LoggedCommit]:
        for version in range(newest, 0, -1):
            commit = self.tables[url].commits[version - 1]
            yield LoggedCommit(version, "STREAMING UPDATE", read_version=version - 1, metadata=commit.metadata)
        yield LoggedCommit(0, "CREATE TABLE")

    def create(self, url: str, shape: TableShape) -> None:
        if url not in self.tables:
            self._made += 1
            schema = schema_to_json(nullable_columns(schema_from_json(shape.schema)))
            self.tables[url] = MemoryTable(f"table-{self._made}", schema, shape.partition_by)

    def make(self, url: str, shape: TableShape, layout: Layout, *, nullable: bool) -> None:
        raise AssertionError(url, shape, layout, nullable)

    def template(self, url: str) -> Template | None:
        raise AssertionError(url)

    def add_columns(self, url: str, added: Sequence[Addition]) -> None:
        assert added, "ALTER TABLE takes no empty list"
        table = self.tables[url]
        try:
            wanted = with_additions(schema_from_json(table.schema), added)
        except ValueError as error:
            msg = f"cannot add columns to the Delta table {url}: {error}"
            raise TableError(msg, "look again") from error
        table.schema = schema_to_json(wanted)

    def widen(self, url: str, widening: Widening) -> None:
        table, (name,) = self.tables[url], widening.path
        columns = schema_from_json(table.schema)
        fields = (replace(field, type=widening.type) if field.name == name else field for field in columns)
        table.schema = schema_to_json(StructType(tuple(fields)))

    def commit(self, commit: TableCommit) -> CommitOutcome:
        return self.meanwhile(commit) or self.changed(commit) or self._done(commit)

    def changed(self, commit: TableCommit) -> CommitOutcome | None:
        """Why nothing is written; None when the table is as the commit expects it."""
        table, target = self.tables[commit.target.url], commit.target
        if (table.table_id, table.schema, table.partition_by) != (
            target.table_id,
            target.shape.schema,
            target.shape.partition_by,
        ):
            return Conflicted("the table is another one")
        if commit.is_resolution and target.version != self.version(target.url):
            return Conflicted("the table has a newer version")
        if not commit.is_resolution and all(
            table.transactions.get(app_id, -1) >= last for app_id, last in commit.advances.items()
        ):
            return AlreadyLoaded(self.version(target.url))
        if any(table.transactions.get(app_id) != last for app_id, last in commit.expected.items()):
            return Conflicted("another loader moved a position")
        return None

    def _done(self, commit: TableCommit) -> Committed:
        table = self.tables[commit.target.url]
        table.commits.append(commit)
        table.transactions |= commit.advances
        return Committed(self.version(commit.target.url))
