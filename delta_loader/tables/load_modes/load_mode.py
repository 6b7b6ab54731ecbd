"""The load mode of a table, decided from its protocol, properties and schema, and the setting.

Rules:

1. Zero-copy add is right only where Delta requires nothing of a row except to be in a file with its statistics. Any
   other requirement is fulfilled by Delta's own writer, through Spark: append.
2. An unknown feature is refused by its name: a new one may require anything, of a row or of a commit.
3. The setting may require more work than the table does (``append``, ``merge``), never less: ``add`` to a table that
   has to be appended to is refused.
4. The mode is decided again each time the table is read, so a table that gains a constraint is appended to from then
   on.
"""

from dataclasses import dataclass
from typing import ClassVar, assert_never

from common.errors import NotCompatibleError
from common.remedies import TABLE, of_table
from common.schema.ddl import backticks
from common.settings.values import LoadSetting
from common.tables.state import TableState
from common.tables.table_features import appended_for, is_append_only, may_refuse_rows, padded_column, refused_for


@dataclass(frozen=True, slots=True)
class LoadMode:
    """How rows get into a table: one of `Add`, `Append`, `Merge` and `Refused`."""

    reason: str
    checks_rows: bool = False
    """Whether the table may refuse rows."""

    name: ClassVar[str]
    """In status and metrics."""
    through_spark: ClassVar[bool] = False
    """Whether Spark reads all staged rows."""


class Add(LoadMode):
    """Staged files become part of the table as they are."""

    name = "add"


class Append(LoadMode):
    """Spark reads staged rows, and Delta's own writer writes them to files of the table."""

    name = "append"
    through_spark = True


class Merge(LoadMode):
    """Staged rows are changes: Spark merges them into the table."""

    name = "merge"
    through_spark = True


@dataclass(frozen=True, slots=True)
class Refused(LoadMode):
    name = "refused"
    remedy: str = "load into a table without it"
    """With the placeholder of common/remedies.py, rule 3."""


PLAIN = Add("files are committed as they are: the table has no constraint or feature that needs a rewrite")


def choose_load_mode(state: TableState, setting: LoadSetting = LoadSetting.AUTO) -> LoadMode:
    refused = refused_for(state)
    if refused is not None:
        problem, remedy = refused
        return Refused(problem, remedy=remedy)
    demand = appended_for(state)
    match setting:
        case LoadSetting.MERGE:
            return _merging(state)
        case LoadSetting.APPEND:
            return Append(demand or "load is append", may_refuse_rows(state))
        case LoadSetting.ADD if demand is not None:
            return Refused(f"{demand}, but load is add", remedy="set load: auto, or load into a table without it")
        case LoadSetting.ADD | LoadSetting.AUTO:
            return PLAIN if demand is None else Append(demand, may_refuse_rows(state))
        case _:
            assert_never(setting)


def _merging(state: TableState) -> Merge | Refused:
    if is_append_only(state):
        return Refused(
            "it is append-only, but load is merge",
            remedy=f"ALTER TABLE {TABLE} UNSET TBLPROPERTIES ('delta.appendOnly'), or load another table",
        )
    padded = padded_column(state)
    if padded is not None:
        name, kind = padded
        remedy = "load a table that has STRING instead"
        if kind.lower().startswith("char("):  # ALTER TABLE does not change one within another column
            remedy = f"make it a STRING (ALTER TABLE {TABLE} ALTER COLUMN {backticks(name)} TYPE STRING), or {remedy}"
        return Refused(f"its column {name} is {kind}, which Spark pads when it reads; load is merge", remedy=remedy)
    return Merge("load is merge", may_refuse_rows(state))


def require_loadable(load_mode: LoadMode, url: str) -> None:
    """Raises TableError when rows may not be loaded into the table."""
    if isinstance(load_mode, Refused):
        msg = f"rows cannot be loaded into the Delta table {url}: {load_mode.reason}"
        raise NotCompatibleError(msg, of_table(load_mode.remedy, url))
