"""The SQL of one row for each key that a load has events of (statement.py, rules 1, 2 and 6)."""

# ruff: noqa: S608 - every name is quoted, and no value of a record is in a text but as `bounds` writes it

from common.tables.changes import DELETE_COLUMN, RESERVED
from delta_loader.tables.merging.inputs import MergeInputs

_APPLIES = f"{RESERVED}applies"
_RANK = f"{RESERVED}rank"
IMAGE = f"{RESERVED}image"
IMAGE_SEQUENCE = f"{RESERVED}image_sequence"
LAST_DELETES = f"{RESERVED}last_deletes"
LAST_SEQUENCE = f"{RESERVED}last_sequence"
PLAIN = f"{RESERVED}plain"
_SEGMENT = f"{RESERVED}segment"
RESET = f"{RESERVED}reset"
RESET_SEQUENCE = f"{RESERVED}reset_sequence"
RUNNING = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"


def last_events(merge: MergeInputs) -> str:
    """One row per key of the load."""
    if merge.by.soft_delete is None:
        return _last_rows(merge)
    return _last_images(merge, merge.by.soft_delete)


def _last_rows(merge: MergeInputs) -> str:
    columns = [merge.q(name) for name in (*merge.columns, *merge.made_keys, DELETE_COLUMN)]
    ranked = [f"{_rank(merge, f'{merge.q(_APPLIES)} DESC')} AS {merge.q(_RANK)}"]
    if merge.by.sequence is not None:
        columns += [merge.q(PLAIN)]
        ranked += [f"{_any_plain(merge)} AS {merge.q(PLAIN)}"]
    columns += map(merge.q, _of_composed(merge))
    return (
        f"SELECT {', '.join(columns)} FROM (SELECT *, {', '.join(ranked)} FROM ({_composed(merge)}) AS judged) "
        f"AS ranked WHERE {merge.q(_RANK)} = 1"
    )


def _last_images(merge: MergeInputs, soft_delete: str) -> str:
    """Each key's last upsert that counts, with the effect of its last event; null where there is no upsert."""
    q, delete = merge.q, merge.q(DELETE_COLUMN)
    image = f"({q(_APPLIES)} AND NOT {delete})"
    last = f"OVER (PARTITION BY {merge.keys()} ORDER BY {q(_APPLIES)} DESC, {merge.place('DESC')})"
    made = [
        f"{_rank(merge, f'{image} DESC')} AS {q(_RANK)}",
        f"{image} AS {q(IMAGE)}",
        f"first_value({delete}) {last} AS {q(LAST_DELETES)}",
    ]
    kept = [q(IMAGE), q(LAST_DELETES), *map(q, _of_composed(merge))]
    sequence = merge.by.sequence
    if sequence is not None:
        made += [
            f"first_value({q(sequence)}) {last} AS {q(LAST_SEQUENCE)}",
            f"{q(sequence)} AS {q(IMAGE_SEQUENCE)}",
            f"max({q(sequence)}) OVER (PARTITION BY {merge.keys()}) AS {q(f'{RESERVED}highest')}",
            f"{_any_plain(merge)} AS {q(PLAIN)}",
        ]
        kept += [q(LAST_SEQUENCE), q(IMAGE_SEQUENCE), q(PLAIN)]
    chosen = [_in_last_image(merge, name, soft_delete) for name in (*merge.columns, *merge.made_keys)]
    columns = ", ".join((*chosen, *kept))
    ranked = f"SELECT *, {', '.join(made)} FROM ({_composed(merge)}) AS judged"
    return f"SELECT {columns} FROM ({ranked}) AS ranked WHERE {q(_RANK)} = 1"


def _in_last_image(merge: MergeInputs, name: str, soft_delete: str) -> str:
    q = merge.q
    if name in merge.by.keys:
        return q(name)
    if name == soft_delete:
        return f"{q(LAST_DELETES)} AS {q(name)}"
    if name == merge.by.sequence:
        return f"{q(f'{RESERVED}highest')} AS {q(name)}"
    return f"CASE WHEN {q(IMAGE)} THEN {q(name)} END AS {q(name)}"


def _judged(merge: MergeInputs) -> str:
    """The staged events, each with whether it counts among those of the load."""
    if merge.by.sequence is None:
        return f"SELECT *, true AS {merge.q(_APPLIES)} FROM {merge.events()}"
    sequence = merge.q(merge.by.sequence)
    highest = f"max({sequence}) OVER (PARTITION BY {merge.keys()} ORDER BY {merge.place('ASC')} {RUNNING})"
    return f"SELECT *, ({sequence} IS NULL OR {sequence} >= {highest}) AS {merge.q(_APPLIES)} FROM {merge.events()}"


def _of_composed(merge: MergeInputs) -> tuple[str, ...]:
    """The columns that `_composed` adds, for the table's row to be compared with."""
    if not merge.patched:
        return ()
    if merge.by.sequence is None:
        return (RESET,)
    return (RESET, RESET_SEQUENCE, *map(came_with, range(len(merge.patched))))


def _composed(merge: MergeInputs) -> str:
    """The judged events, where upserts have the values of the key's earlier ones that they leave as they are."""
    if not merge.patched:
        return _judged(merge)
    q, sequence = merge.q, merge.by.sequence
    deletes, upserts = (f"({q(_APPLIES)} AND {what}{q(DELETE_COLUMN)})" for what in ("", "NOT "))
    key = f"OVER (PARTITION BY {merge.keys()} ORDER BY {merge.place('ASC')} {RUNNING})"
    within = f"OVER (PARTITION BY {merge.keys()}, {q(_SEGMENT)} ORDER BY {merge.place('ASC')} {RUNNING})"
    others = dict.fromkeys((*merge.columns, *merge.by.order, DELETE_COLUMN, _APPLIES))
    made = [q(name) for name in others if name not in merge.patched]
    for number, name in enumerate(merge.patched):
        given = f"{upserts} AND {q(name)} IS NOT NULL"
        made.append(f"{merge.last_known.format(f'CASE WHEN {given} THEN {q(name)} END')} {within} AS {q(name)}")
        if sequence is not None:
            came = merge.last_known.format(f"CASE WHEN {given} THEN {q(sequence)} END")
            made.append(f"{came} {within} AS {q(came_with(number))}")
    always = deletes if sequence is None else f"{deletes} AND {q(sequence)} IS NULL"
    made.append(f"(max(CASE WHEN {always} THEN 1 ELSE 0 END) {key} = 1) AS {q(RESET)}")
    if sequence is not None:
        made.append(f"max(CASE WHEN {deletes} THEN {q(sequence)} END) {key} AS {q(RESET_SEQUENCE)}")
    segments = f"sum(CASE WHEN {deletes} THEN 1 ELSE 0 END) {key} AS {q(_SEGMENT)}"
    return f"SELECT {', '.join(made)} FROM (SELECT *, {segments} FROM ({_judged(merge)}) AS one) AS parted"


def _any_plain(merge: MergeInputs) -> str:
    """Whether the load has a delete of the key that always counts."""
    plain = f"{merge.q(DELETE_COLUMN)} AND {merge.q(merge.by.sequence or '')} IS NULL"
    return f"(max(CASE WHEN {plain} THEN 1 ELSE 0 END) OVER (PARTITION BY {merge.keys()}) = 1)"


def _rank(merge: MergeInputs, first: str) -> str:
    return f"row_number() OVER (PARTITION BY {merge.keys()} ORDER BY {first}, {merge.place('DESC')})"


def came_with(number: int) -> str:
    """The column with the sequence that a value came with, for the patched column of this number."""
    return f"{RESERVED}came_with_{number}"
