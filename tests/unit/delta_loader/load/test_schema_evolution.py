"""How a table is changed to accept staged rows: `evolution: add` and `widen`."""

import uuid

import pytest
import structlog

from common.errors import TableError
from common.schema import parse_ddl, schema_from_json, schema_to_json, to_ddl
from common.settings.values import Evolution
from common.storage.store import FsspecStore
from common.tables.dead_letters import DEAD_LETTER_SCHEMA
from delta_loader.load.schema_evolution import SchemaEvolution
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import Target
from delta_loader.tables.load_modes.casting import Widening
from tests.builders import required
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import ports_for, settings_for
from tests.fakes.staging import Staging

LOG = structlog.get_logger()


class Narrow(MemoryDeltaTables):
    """Widens nothing."""

    tries = 0

    def widen(self, url: str, widening: Widening) -> None:
        self.tries += 1
        msg = f"{url} does not take {widening}"
        raise TableError(msg, "")


class World:
    def __init__(self, evolution: str, tables: MemoryDeltaTables, columns: str) -> None:
        (stream,) = settings_for(Staging(f"memory://{uuid.uuid4().hex}", "orders")).streams
        self.stream = stream.model_copy(update={"evolution": Evolution(evolution)})
        self.tables = tables
        tables.create(stream.table, TableShape(schema_to_json(parse_ddl(columns)), ()))
        ports = ports_for(FsspecStore(f"memory://{uuid.uuid4().hex}"), tables)
        self.evolution = SchemaEvolution.if_configured(self.stream, ports, ports.log)

    def alter(self, staged: str) -> bool:
        """Whether the table may have changed to accept these columns."""
        state = required(self.tables.state(self.stream.table))
        table = Target(self.stream.table, state.table_id, TableShape(state.schema, ()), {}, state.version)
        return required(self.evolution).alter(table, TableShape(schema_to_json(parse_ddl(staged)), ()))

    @property
    def columns(self) -> str:
        return to_ddl(schema_from_json(self.tables.tables[self.stream.table].schema))


def test_strict_stream_changes_no_table() -> None:
    assert World("strict", MemoryDeltaTables(), "id INT").evolution is None


@pytest.mark.parametrize(("evolution", "kept"), [("add", "id INT"), ("widen", "id BIGINT")])
def test_table_gains_what_the_setting_allows(evolution: str, kept: str) -> None:
    world = World(evolution, MemoryDeltaTables(), "id INT")
    assert world.alter("id BIGINT, name STRING")
    assert world.columns == f"{kept}, name STRING"
    assert world.alter("id BIGINT, name STRING") is False, "the rest is cast, or refused"


@pytest.mark.parametrize("evolution", ["add", "widen"])
def test_rows_and_dead_letters_never_share_a_table(evolution: str) -> None:
    """The names of the tables were swapped in the config."""
    dead_letters = to_ddl(DEAD_LETTER_SCHEMA)
    for table, staged in (("id INT", dead_letters), (dead_letters, "id INT")):
        world = World(evolution, MemoryDeltaTables(), table)
        assert not world.alter(staged)
        assert world.columns == table


def test_table_of_dead_letters_gains_no_fields_of_rows() -> None:
    staging, tables = Staging(f"memory://{uuid.uuid4().hex}", "orders"), MemoryDeltaTables()
    (stream,) = settings_for(staging, {"unknown_fields": "evolve"}).streams
    evolution = required(SchemaEvolution.if_configured(stream, ports_for(FsspecStore(staging.stage_url), tables), LOG))
    for columns, changes in (("id INT", True), (to_ddl(DEAD_LETTER_SCHEMA), False)):
        table = Target(stream.table, "1", TableShape(schema_to_json(parse_ddl(columns)), ()), {}, 0)
        tables.tables.clear()
        tables.create(stream.table, table.shape)
        staged = TableShape(schema_to_json(parse_ddl("id INT, name STRING")), ())
        assert evolution.evolve(table, staged, []) is changes


@pytest.mark.parametrize(
    "columns", ["_kafka_topic STRING, value BINARY", f"{to_ddl(DEAD_LETTER_SCHEMA)}, seen BOOLEAN"]
)
def test_table_of_dead_letters_may_lack_columns_or_have_more(columns: str) -> None:
    world = World("add", MemoryDeltaTables(), columns)
    world.alter(to_ddl(DEAD_LETTER_SCHEMA))
    assert {*parse_ddl(world.columns).names} == {*DEAD_LETTER_SCHEMA.names, *parse_ddl(columns).names}
    assert not world.alter("id INT"), "rows are for another table"


@pytest.mark.parametrize("columns", ["key STRING, value STRING", f"{to_ddl(DEAD_LETTER_SCHEMA)}, id INT"])
def test_table_of_rows_may_have_names_of_dead_letters(columns: str) -> None:
    world = World("add", MemoryDeltaTables(), columns)
    assert world.alter(f"{columns}, name STRING")


def test_refused_type_change_is_tried_once() -> None:
    tables = Narrow()
    world = World("widen", tables, "id INT")
    assert world.alter("id BIGINT")
    assert not world.alter("id BIGINT")
    assert (world.columns, tables.tries) == ("id INT", 1)
