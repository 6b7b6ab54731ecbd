"""Checks rows one by one, as processors return them: from the first conversion with an incompatible row on.

Rules:

1. Checking a row by itself costs many times more than as part of a batch. So it is done only in a conversion with an
   incompatible row, and in those after it, until one has no such row any more.
2. A field that the table has no column for is a bug in the code that affects every record: the work ends with an error
   that names it. If the name comes from the message itself (JSON that is passed on, a MAP, a text), that message is
   refused instead, because no record may end the work.
"""

import difflib
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from stage_writer.topologies.errors import RowRefusedError, UnknownFieldError
from stage_writer.topologies.task.context import PUNCTUATING, Current
from stage_writer.topologies.task.inputs import Collected, Outbox
from stage_writer.topologies.task.late import RowMaker
from stage_writer.topologies.task.writing import Row, RowWriter


class RowChecks:
    """Whether the rows of a task are checked one by one."""

    def __init__(self, maker: RowMaker, outbox: Outbox, current: Current) -> None:
        self._maker = maker
        self._outbox = outbox
        self._current = current
        self._refused = 0
        self.are_on = False

    def begin(self) -> None:
        """A conversion starts (rule 1)."""
        if self.are_on and not self._refused:
            self._set(on=False)
        self._refused = 0

    def turn_on(self) -> None:
        """A row was incompatible: the conversion is repeated."""
        self._set(on=True)

    def _set(self, *, on: bool) -> None:
        self.are_on = on
        maker, outbox = self._maker, self._outbox
        for table, collected in outbox.rows.items():
            what = f"the table {table!r}" if table else "the stream's table"
            columns = f"streams[].route_tables.{table}.columns" if table else "streams[].columns"
            checked = partial(self._check, Outbox(rows={table: Collected()}), maker.tables[table], (what, columns))
            collected.check = checked if on else None
        for step, collected in outbox.late.items():
            declared_by = (f"the step {step!r}", "the step's columns=")
            writer = maker.columns.get(step)
            if writer is not None:
                checked = partial(self._check, Outbox(late={step: Collected()}), writer, declared_by)
                collected.check = checked if on else None

    def _check(self, alone: Outbox, writer: RowWriter, declared_by: tuple[str, str], row: Row) -> None:
        """Raises RowRefusedError, or UnknownFieldError (rule 2)."""
        current = self._current
        (collected,) = alone.collections()
        collected.index, collected.values = [current.index], [row]
        collected.punctuated = [(0, 1)] if current.input_index == PUNCTUATING else []
        unknown = writer.unknown(row)
        if unknown and current.input_index != PUNCTUATING:
            for name in sorted(unknown.difference(_data_of(current)), key=str):
                raise _unknown_field(name, declared_by, writer, row, current)
        made = self._maker.made_of(alone)
        if made.rejects:
            self._refused += 1
            raise RowRefusedError(made.rejects[0])


def _unknown_field(
    name: object, declared_by: tuple[str, str], writer: RowWriter, row: Row, current: Current
) -> UnknownFieldError:
    what, columns = declared_by
    close_matches = difflib.get_close_matches(str(name), sorted(writer.names.difference(row)), 1)
    hint = f"did you mean {close_matches[0]!r}? " if close_matches else ""
    problem = f"the topology returns rows with the field {name!r}, but {what} has no such column"
    where = f"the first one comes from the message at {current.where()}"
    return UnknownFieldError(f"{problem}; {where}", f"{hint}correct it in the topology's code, or add it to {columns}")


def _data_of(current: Current) -> set[str]:
    """Each text in a message that may have become the name of a field (rule 2)."""
    given, row_index = current.input, current.input_index
    if given is None:
        return set()
    key = given.keys[row_index].as_py()
    texts = set() if key is None else {key.decode("utf-8", "replace")}
    if not given.is_null[row_index]:
        (row,) = given.rows.slice(row_index, 1).to_pylist()
        texts.update(_texts(_json_of(row) if list(row) == ["value"] else list(row.values())))
    return texts


def _json_of(row: Row) -> Any:  # noqa: ANN401 - any JSON
    """The value of a message of a source without columns."""
    value = row["value"]
    if not isinstance(value, bytes):
        return [value]
    try:
        return json.loads(value)
    except ValueError:
        return None


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON, or what a column holds
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
