"""How a table's rows were merged so far, by the rules of load/merged_keys.py. Pure."""

from common.tables.changes import MergeBy, MergedBy


def has_one_row_for_each_key(before: MergedBy | None, merge: MergeBy) -> bool:
    """Whether it is known that no two rows have the same keys (rule 1)."""
    return before is not None and {*before.keys} <= {*merge.keys}


def how_merged(before: MergedBy | None) -> str:
    return "not merged" if before is None else f"merged by {', '.join(before.keys)}"


def changed_sequence(before: MergedBy | None, merge: MergeBy) -> tuple[str, str] | None:
    """The problem of versions that were kept by another sequence, and the setting that was used (rule 3)."""
    if before is None or not (before.history and merge.history) or before.sequence == merge.sequence:
        return None
    now, then = (f"by {name}" if name else "without a sequence" for name in (merge.sequence, before.sequence))
    setting = f"write merge.sequence: {before.sequence}" if before.sequence else "remove merge.sequence"
    return f"its versions were kept {then}, and what is staged would be put between them {now}", setting
