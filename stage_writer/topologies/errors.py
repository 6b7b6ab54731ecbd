"""Errors that end a topology's work."""

from common.errors import ExitCode, KafkaDeltaExpressError
from stage_writer.decode.rejects import Reject

_MOST_CHARACTERS = 4_000
"""The maximum length of an error's text: it may quote all of a record."""


class TopologyError(KafkaDeltaExpressError):
    """The user's code failed where no record can be put aside for it, or where the topology forbids that."""


class UnknownFieldError(TopologyError):
    """The user's code returned rows with a field that their table or step does not have."""

    exit_code = ExitCode.USAGE


class RowRefusedError(BaseException):
    """A row is incompatible with its table or step, so its message is refused.

    It passes through the user's code, which may catch every `Exception` of what it calls.
    """

    def __init__(self, reject: Reject) -> None:
        super().__init__(reject.error)
        self.reject = reject


def error_text(error: Exception) -> str:
    """The text of an error of the user's code, in a form that can be stored."""
    try:
        text = str(error)
    except Exception as another:  # noqa: BLE001 - the user's code may raise anything
        text = f"its text raises {type(another).__name__}"
    return text[:_MOST_CHARACTERS].encode("utf-8", "backslashreplace").decode()
