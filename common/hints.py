"""Suggests the known name that a misspelled one probably means."""

import difflib
from collections.abc import Iterable

from common.errors import UsageError


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A question with the known name that differs in case only, or with the most similar one; else ``otherwise``."""
    names = list(known)
    same = [candidate for candidate in names if candidate.casefold() == name.casefold()]
    close_matches = same or difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close_matches[0]!r}?" if close_matches else otherwise


def unknown_stream(app_id: str, known: Iterable[str]) -> UsageError:
    app_ids = list(known)
    msg = f"no stream of this config has the app_id {app_id!r}"
    return UsageError(msg, did_you_mean(app_id, app_ids, f"available: {', '.join(app_ids)}"))
