"""What ends a topology's work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import ExitCode, KafkaDeltaExpressError

if TYPE_CHECKING:
    from stage_writer.core.decoding.rejects import Reject

_SAID_CHARACTERS = 4_000
"""Of an error's text: it may quote all of a record."""


class TopologyError(KafkaDeltaExpressError):
    """The user's code failed where no record can be put aside for it, or where the topology says that it may not."""


class UnknownFieldError(TopologyError):
    """The user's code gives rows a field that their table or step does not have."""

    exit_code = ExitCode.USAGE


class RowRefusedError(BaseException):
    """A row does not fit its table or step, so its message is refused.

    It passes through the user's code, which may catch every `Exception` of what it calls.
    """

    def __init__(self, reject: Reject) -> None:
        """``reject`` is that of the message."""
        super().__init__(reject.error)
        self.reject = reject


def said(error: Exception) -> str:
    """What an error of the user's code says, as text that can be kept."""
    try:
        text = str(error)
    except Exception as another:  # noqa: BLE001 - the user's code may raise anything
        text = f"its text raises {type(another).__name__}"
    return text[:_SAID_CHARACTERS].encode("utf-8", "backslashreplace").decode()
