"""Rules of replays, broken on purpose."""

from collections.abc import Callable

from common.settings import Stream
from common.spans import Position
from delta_loader.load import replace_ranges
from delta_loader.load.replace_ranges import Replacements
from delta_loader.load.replace_steps import Request
from tests.simulation.mutation import Mutation, changed, wrapped
from tests.simulation.world import MANY_REPLAYS
from tests.simulation.worlds import Worlds


def _by_time_only(_self: Replacements, requests: list[Request], _stream: Stream) -> list[Request]:
    """Whether one of them has begun or not."""
    return sorted(requests, key=lambda request: (request.content.created_ms, request.name))


def _wherever(real: Callable[..., object], request: Request, stream: Stream, position: Position | None) -> object:
    return real(request, stream, position and Position(request.content.span.end))


def _in_the_last_commit(real: Callable[..., None], *arguments: object, keep_stale: bool = False) -> None:
    """Secondary tables get rows in the commit that removes others."""
    if not keep_stale:
        real(*arguments)


_overtaking = changed(replace_ranges, "behind", lambda *_: None)
_unordered = changed(Replacements, "_in_order", _by_time_only)
_unloaded = wrapped(replace_ranges, "waits", _wherever)
_late = wrapped(Replacements, "_commit", _in_the_last_commit)
RULES = (
    Mutation("unloaded records are not replaced", _unloaded, MANY_REPLAYS, Worlds.REPLAYED),
    Mutation("secondary tables get their rows first", _late, MANY_REPLAYS, Worlds.REPLAYED),
)
RARE = (
    Mutation("requests for one range run one at a time", _overtaking, MANY_REPLAYS, Worlds.REPLAYED),
    Mutation("a started request goes first", _unordered, MANY_REPLAYS, Worlds.REPLAYED),
)
