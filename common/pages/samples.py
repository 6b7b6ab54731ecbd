"""A few dead letters for the status page, masked: their structure without their content.

Rules:

1. Off unless enabled in the settings. Only the newest of each class are kept, truncated.
2. Digits become ``9``, and everything else except JSON's own punctuation ``x``. The names of fields stay; text that may
   not be a field name is masked too. The position identifies the record.
"""

import re
from collections import deque
from collections.abc import Iterable

from common.pages.model import Sample

_MOST_CHARACTERS = 200
_NAME = re.compile(r'(?<=[{,])(\s*"[A-Za-z_][A-Za-z0-9_]{0,40}"\s*:)')
_SHAPE = frozenset(' \n\t{}[]":,.+-\\')
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')


class Samples:
    def __init__(self, most: int) -> None:
        """Keeps at most ``most`` samples of each class."""
        self._most = most
        self._found: dict[tuple[str, str], deque[Sample]] = {}

    def add(self, app_id: str, dead_letters: Iterable[tuple[str, str, bytes | None]]) -> None:
        """Add a stream's dead letters: class, position, and value."""
        for error_class, origin, value in dead_letters:
            samples = self._found.setdefault((app_id, error_class), deque(maxlen=self._most))
            samples.append(Sample(origin, masked(value or b"")))

    def of(self, app_id: str, error_class: str) -> tuple[Sample, ...]:
        """The samples of a class, the newest first."""
        return tuple(reversed(self._found.get((app_id, error_class), ())))


def masked(value: bytes) -> str:
    """A value's structure (rule 2)."""
    text = value[: _MOST_CHARACTERS * 4].decode("utf-8", "replace")
    inside = [match.span() for match in _TEXT.finditer(text)]
    starts = {start for start, _ in inside}
    parts: list[str] = []
    last = 0
    for name in _NAME.finditer(text):
        quote = text.index('"', name.start())
        if quote in starts:  # and not in the middle of other text
            parts += [_masked(text[last : name.start()]), name[0]]
            last = name.end()
    shown = "".join([*parts, _masked(text[last:])])
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]}…"


def _masked(text: str) -> str:
    return "".join(character if character in _SHAPE else "9" if character.isdigit() else "x" for character in text)
