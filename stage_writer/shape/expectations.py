"""Rules that rows should follow: the `expect` of a stream.

Rules:

1. A rule sees the record's fields, the derived columns and ``kafka`` (see `evaluation`), and is of type BOOLEAN. It is
   evaluated once for each record, before that is exploded.
2. A record breaks a rule that is false for it, or that fails for it. Null does not break a rule, as with SQL's CHECK.
3. A record is counted once for each rule that it breaks. What becomes of it is decided by the strictest of these: it
   stops its partition, or is a reject, or goes on.
4. A delete of a merge is not checked: it makes no row, and without it the table would keep a row that is gone.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc

from common.schema import Primitive, StructType, type_to_ddl
from common.settings import Stream
from common.settings.parts import OnFail
from common.tables.changes import DELETE_COLUMN
from stage_writer.decode.batch import Messages
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.shape.evaluation import Evaluator
from stage_writer.shape.expressions import refused
from stage_writer.shape.headers import with_readable_headers
from stage_writer.shape.rows import Rows, Stop


class Expectations:
    """Checks records: a `Step`. Raises ExpressionError if a rule is not a condition over the columns."""

    def __init__(self, columns: StructType, stream: Stream) -> None:
        """``columns`` may include the delete marker, which rules do not see."""
        self.columns = columns
        self._deletes = DELETE_COLUMN in columns.names
        self._on_fail = {
            name: expectation.on_fail or stream.shaping.on_fail for name, expectation in stream.shaping.expect.items()
        }
        self._rules = {name: expectation.rule for name, expectation in stream.shaping.expect.items()}
        seen = StructType(tuple(field for field in columns if field.name != DELETE_COLUMN))
        self._seen = seen
        self._together = Evaluator(seen, {_setting(name): rule for name, rule in self._rules.items()})
        self._alone: dict[str, Evaluator] = {}
        """Evaluators of single rules, made when needed."""
        for name, data_type in zip(self._rules, self._together.types, strict=True):
            if data_type is not Primitive.BOOLEAN:
                problem = f"its type is {type_to_ddl(data_type)}, but a rule must be true or false"
                raise refused(_setting(name), self._rules[name], problem, "compare it with something, as in amount > 0")
        self.needs_headers = self._together.needs_headers
        self.needs_kafka = self._together.needs_kafka

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The rows of records that are to be staged; the violations of all of them (rule 3)."""
        if self.needs_headers:
            rows = with_readable_headers(rows, messages)
        broken = self._broken(rows, messages)
        if self._deletes:
            upserts = ~rows.table[DELETE_COLUMN].to_numpy()
            broken = {
                name: {row: why for row, why in failures.items() if upserts[row]} for name, failures in broken.items()
            }
        broken = {name: failures for name, failures in broken.items() if failures}
        if not broken:
            return rows
        violations = {name: np.unique(rows.index[list(failures)]) for name, failures in broken.items()}
        stops = self._reasons(broken, OnFail.HOLD)
        dead_letters = self._reasons(broken, OnFail.DEAD_LETTER)
        failing = np.zeros(len(rows), np.bool_)
        failing[list(dead_letters)] = True
        rejects = (
            Reject(int(rows.index[row]), ErrorClass.EXPECTATION, why) for row, why in sorted(dead_letters.items())
        )
        checked = replace(
            rows, violations=violations, stops=tuple(Stop(int(rows.index[row]), why) for row, why in stops.items())
        )
        return checked.without(failing, rejects) if dead_letters else checked

    def _reasons(self, broken: Mapping[str, Mapping[int, str]], on_fail: OnFail) -> dict[int, str]:
        """Why each row breaks rules with that effect, by row."""
        reasons: dict[int, str] = {}
        for name, failures in broken.items():
            if self._on_fail[name] is on_fail:
                for row, why in failures.items():
                    reasons[row] = f"{reasons[row]}; {why}" if row in reasons else why
        return reasons

    def _broken(self, rows: Rows, messages: Messages) -> dict[str, dict[int, str]]:
        """The rows that break a rule, and why, by rule."""
        columns, failures = self._together.evaluate_rows(rows, messages)
        if not failures:
            falses = [~pc.fill_null(values, fill_value=True).to_numpy() for values in columns]
            return {
                name: dict.fromkeys(np.flatnonzero(false).tolist(), self._is_false(name))
                for name, false in zip(self._rules, falses, strict=True)
            }
        return {name: self._broken_alone(name, rows, messages) for name in self._rules}

    def _broken_alone(self, name: str, rows: Rows, messages: Messages) -> dict[int, str]:
        """Like `_broken` for one rule: if any rule fails for a row, they are evaluated one by one."""
        if name not in self._alone:
            self._alone[name] = Evaluator(self._seen, {_setting(name): self._rules[name]})
        (values,), failures = self._alone[name].evaluate_rows(rows, messages)
        kept = np.setdiff1d(np.arange(len(rows)), list(failures))
        false = kept[~pc.fill_null(values, fill_value=True).to_numpy()]
        return {**dict.fromkeys(false.tolist(), self._is_false(name)), **failures}

    def _is_false(self, name: str) -> str:
        return f"{_setting(name)} is false: {self._rules[name].strip()}"


def _setting(name: str) -> str:
    return f"expect.{name}"
