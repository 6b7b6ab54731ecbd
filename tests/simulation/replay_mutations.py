"""Rules of replays, broken on purpose (mutations.py)."""

from contextlib import AbstractContextManager
from unittest.mock import patch

from common.settings import Stream
from common.spans import Position
from delta_loader.load import replace_ranges, replace_steps
from delta_loader.load.replace_ranges import Replacements
from delta_loader.load.replace_steps import Request
from delta_loader.plan.held import Held


def requests_overtake_one_another() -> AbstractContextManager[object]:
    return patch.object(replace_ranges, "behind", lambda _request, _earlier: None)


def requests_are_ordered_by_time_only() -> AbstractContextManager[object]:
    """Whether one of them has begun or not."""

    def in_order(self: Replacements, requests: list[Request], stream: Stream) -> list[Request]:
        del self, stream
        return sorted(requests, key=lambda request: (request.content.created_ms, request.name))

    return patch.object(Replacements, "_in_order", in_order)


def unloaded_records_are_replaced() -> AbstractContextManager[object]:
    waits = replace_steps.waits

    def wherever(request: Request, stream: Stream, position: Position | None) -> Held | None:
        return waits(request, stream, position and Position(request.content.span.end))

    return patch.object(replace_ranges, "waits", wherever)


def secondary_tables_come_last() -> AbstractContextManager[object]:
    """They get rows in the commit that removes others."""
    commit = Replacements._commit

    def later(self: Replacements, *arguments: object, keep_stale: bool = False) -> None:
        if not keep_stale:
            commit(self, *arguments)  # type: ignore[arg-type]

    return patch.object(Replacements, "_commit", later)


RULES = (
    ("unloaded records are not replaced", unloaded_records_are_replaced),
    ("secondary tables get their rows first", secondary_tables_come_last),
)
"""The rules, each with its mutation."""
