"""The `topics` of a stream: names, or one regular expression."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def require_topics(value: object) -> object:
    """The topics unchanged; raises ValueError for what is neither names nor one regular expression."""
    if not isinstance(value, list | tuple) or not all(isinstance(topic, str) for topic in value):
        msg = "is not a list of topics; write [orders] or [^orders-.*]"
        raise ValueError(msg)
    patterns = [topic for topic in value if topic.startswith("^")]
    if patterns and len(value) > 1:
        msg = "mixes a regular expression with other topics; give one expression alone, or names only"
        raise ValueError(msg)
    for topic in value:
        if topic.startswith("^"):
            _compile(topic)
        elif not _NAME.fullmatch(topic) or topic in {".", ".."}:
            msg = f"holds {topic!r}, which is no topic name; letters, digits, '.', '_' and '-' are allowed"
            raise ValueError(msg)
    if len(set(value)) < len(value):
        msg = "names a topic twice; name each once"
        raise ValueError(msg)
    return value


def _compile(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        msg = f"holds {pattern!r}, which is no regular expression ({error}); fix it or give the topics' names"
        raise ValueError(msg) from None


Topics = Annotated[tuple[str, ...], BeforeValidator(require_topics)]
"""The topics of a stream."""
