"""Rewrites values, in the text of many documents, into a form that their column accepts.

Two uses. So that all columns can be read together, a MAP's object becomes the list of its entries (`pyarrow.json`
cannot read an object with arbitrary names), and a STRING of the format `json` gets its value's text as a JSON string.
And values that only lenient reading accepts get the form that strict reading requires
(`stage_writer.decode.strict`, rules 8 and 9). Rules:

1. Only values at the columns' paths are changed; each means the same to the strict reader as the original does to the
   requested one, or is left unchanged. Unchanged values are refused by the strict reader or read one message at a time.
2. Documents whose structure is not certain are marked (`sure` is false): they are read one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.schema import INTEGER_BITS, ArrayType, DataType, MapType, Primitive, StructType
from common.settings.formats import ValueFormat
from stage_writer.decode.blocks import cut, offsets_of, small_pieces, spans
from stage_writer.decode.conversions import KEY, VALUE
from stage_writer.decode.json_structure import Structure, Values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stage_writer.decode.reading import Reading

    Places = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_WHOLE = r'^"?(?P<value>-?(?:0|[1-9][0-9]*))(?:\.0+)?"?$'
_NUMBER = r'^"(?P<value>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"$'
_TRUTH = r'^"(?P<value>true|false)"$'


class Use(Enum):
    """What values are rewritten for."""

    SHAPE = "maps as lists of entries, JSON texts as strings"
    COERCION = "what is lenient as what is strict; of texts that have their shape"


class _Edit(Enum):
    QUOTE = "any value as a string of its text"
    QUOTE_OTHERS = "what is no string as a string of its text"
    WHOLE = "a whole number without quotes, point and zeros"
    NUMBER = "a number without quotes"
    TRUTH = "true and false without quotes"


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to do with a value and its content."""

    edit: _Edit | None = None
    fields: tuple[tuple[bytes, _Plan], ...] = ()
    element: _Plan | None = None
    is_map: bool = False
    values: _Plan | None = None
    """What to do with a map's values."""

    @property
    def opening(self) -> str:
        """The first character of a value that the plan descends into."""
        return "{" if self.fields or self.is_map else "["


def _plan(data_type: DataType, reading: Reading, use: Use) -> _Plan | None:
    match data_type:
        case StructType(fields):
            plans = [(field.name.encode(), _plan(field.type, reading.at(field.name), use)) for field in fields]
            inner = tuple((name, plan) for name, plan in plans if plan is not None)
            return _Plan(fields=inner) if inner else None
        case ArrayType(element):
            plan = _plan(element, reading.at("element"), use)
            return None if plan is None else _Plan(element=plan)
        case MapType(_, value):
            plan = _plan(value, reading.at("value"), use)
            if use is Use.SHAPE:
                return _Plan(is_map=True, values=plan)
            return None if plan is None else _Plan(element=_Plan(fields=((VALUE.encode(), plan),)))
        case _:
            edit = _edit(data_type, reading, use)
            return None if edit is None else _Plan(edit)


def _edit(data_type: DataType, reading: Reading, use: Use) -> _Edit | None:
    is_json = reading.format is ValueFormat.JSON
    if use is Use.SHAPE:
        return _Edit.QUOTE if is_json else None
    if is_json or not isinstance(data_type, Primitive):
        return None
    return _Edit.WHOLE if data_type in INTEGER_BITS else _COERCIONS.get(data_type)


_COERCIONS = {
    Primitive.STRING: _Edit.QUOTE_OTHERS,
    Primitive.DOUBLE: _Edit.NUMBER,
    Primitive.FLOAT: _Edit.NUMBER,
    Primitive.BOOLEAN: _Edit.TRUTH,
}
_PATTERNS = {_Edit.WHOLE: _WHOLE, _Edit.NUMBER: _NUMBER, _Edit.TRUTH: _TRUTH}


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The documents, and which of them are certainly right; None when all are."""

    texts: pa.StringArray
    sure: Mask | None


class Rewriter:
    """Rewrites values of documents, for one use."""

    def __init__(self, columns: StructType, reading: Reading, use: Use) -> None:
        self._root = _plan(columns, reading, use)

    def __bool__(self) -> bool:
        return self._root is not None

    def rewrite(self, texts: pa.StringArray) -> Rewritten:
        """The documents, each proved to be one JSON object."""
        if self._root is None or len(texts) == 0:
            return Rewritten(texts, None)
        found = [self._rewrite_piece(piece, self._root) for piece in small_pieces(texts)]
        sure = np.concatenate(
            [np.ones(len(piece.texts), np.bool_) if piece.sure is None else piece.sure for piece in found]
        )
        return Rewritten(pa.concat_arrays([piece.texts for piece in found]), None if sure.all() else sure)

    def _rewrite_piece(self, texts: pa.StringArray, root: _Plan) -> Rewritten:
        offsets = offsets_of(texts)
        data = texts.buffers()[2].slice(offsets[0], offsets[-1] - offsets[0])
        offsets -= offsets[0]
        structure = Structure(np.frombuffer(data, np.uint8))
        edits = [edit for edit in _edits(structure, data, root) if len(edit.starts)]
        if edits:
            texts = _applied(data, offsets, edits)
        doubtful = structure.doubtful()
        if len(doubtful) == 0:
            return Rewritten(texts, None)
        sure = np.ones(len(texts), np.bool_)
        sure[np.searchsorted(offsets, doubtful, side="right") - 1] = False
        return Rewritten(texts, sure)


@dataclass(frozen=True, slots=True)
class _Replaced:
    """Spans of the text, and their replacements."""

    starts: Places
    ends: Places
    texts: pa.StringArray


def _edits(structure: Structure, data: pa.Buffer, root: _Plan) -> Iterator[_Replaced]:
    """The replacements. Containers of one plan all have the same depth, which is the depth of the plan."""
    todo: list[tuple[_Plan, int, Places | None]] = [(root, 1, None)]
    while todo:
        plan, level, containers = todo.pop()
        for inner, values in _values_of(structure, plan, level, containers):
            if inner.edit is not None:
                yield _replaced(structure, data, values, inner.edit)
                continue
            inside = structure.beginning_with(values, inner.opening)
            if inner.is_map:
                # An array would be read as the list that a map becomes.
                structure.doubt(structure.beginning_with(values, "["))
                yield from _entries(structure, level + 1, inside)
            if inner.fields or inner.element is not None or inner.values is not None:
                todo.append((inner, level + 1, inside))


def _entries(structure: Structure, level: int, maps: Places) -> Iterator[_Replaced]:
    """Turns the objects that start at ``maps`` into lists of entries."""
    members, ends = structure.members(level, maps), structure.closings(level, maps)
    names = members.name_starts - 1
    yield _put(maps, maps + 1, "[")
    yield _put(names, names, f'{{"{KEY}":')
    yield _put(members.name_ends + 1, members.starts, f',"{VALUE}":')
    yield _put(members.ends, members.ends, "}")
    yield _put(ends, ends + 1, "]")


def _put(starts: Places, ends: Places, text: str) -> _Replaced:
    return _Replaced(starts, ends, pa.repeat(pa.scalar(text), len(starts)))


def _values_of(
    structure: Structure, plan: _Plan, level: int, containers: Places | None
) -> Iterator[tuple[_Plan, Values]]:
    if plan.element is not None and containers is not None:
        yield plan.element, structure.elements(level, containers)
        return
    members = structure.members(level, containers)
    if plan.values is not None:
        yield plan.values, members
    for name, inner in plan.fields:
        yield inner, structure.named(members, name)


def _replaced(structure: Structure, data: pa.Buffer, values: Values, edit: _Edit) -> _Replaced:
    first = structure.text[values.starts]
    is_text = first == ord('"')
    match edit:
        case _Edit.QUOTE:
            wanted = first != ord("n")
        case _Edit.QUOTE_OTHERS:
            wanted = (first != ord("n")) & ~is_text
        case _Edit.WHOLE:
            wanted = is_text | (structure.text[values.ends - 1] == ord("0"))
        case _:
            wanted = is_text
    starts, ends = values.starts[wanted], values.ends[wanted]
    order = np.argsort(starts)
    starts, ends = starts[order], ends[order]
    texts = spans(data, starts, ends)
    if edit in _PATTERNS:
        found = pc.struct_field(pc.extract_regex(texts, _PATTERNS[edit]), 0)
        known = found.is_valid().to_numpy(zero_copy_only=False)
        return _Replaced(starts[known], ends[known], found.drop_null())
    return _Replaced(starts, ends, _quoted(texts))


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    """Each text as a JSON string. JSON's texts hold no other control characters than white space."""
    for sign, escape in _ESCAPES:
        texts = pc.replace_substring(texts, sign, escape)
    return pc.binary_join_element_wise('"', texts, '"', "")


def _applied(data: pa.Buffer, offsets: Places, edits: list[_Replaced]) -> pa.StringArray:
    """The documents with all replacements made."""
    starts = np.concatenate([edit.starts for edit in edits])
    ends = np.concatenate([edit.ends for edit in edits])
    order = np.lexsort((ends, starts))  # insertions come before replacements at the same place
    starts, ends = starts[order], ends[order]
    new = pa.concat_arrays([edit.texts for edit in edits]).take(pa.array(order))
    pieces = cut(data, starts, ends)
    count = len(starts)
    chosen = np.arange(2 * count + 1)
    chosen[1::2] = len(pieces) + np.arange(count)
    pieces = pa.concat_arrays([pieces, new]).take(pa.array(chosen))
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(pieces)], pa.int32()), pieces), "")[0]
    grown = np.concatenate((np.zeros(1, np.int64), np.cumsum(pc.binary_length(new).to_numpy() - (ends - starts))))
    moved = offsets + grown[np.searchsorted(ends, offsets, side="right")]
    buffers = [None, pa.py_buffer(moved.astype(np.int32)), joined.as_buffer()]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
