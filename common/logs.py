"""Structured logs: JSON lines for machines, colored text for people, both on standard error.

Rules:

1. An event's name is a constant sentence in lower case, and variable parts are in its fields, so that logs can be
   searched; record bytes and secrets are never among the fields.
2. A line that standard error does not take (its disk is full, its reader is gone) is dropped: work goes on without it.
"""

import logging
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger

from common.printable import one_line, printable
from common.remedies import rendered
from common.settings import LogSettings


class _Lines:
    """Standard error (rule 2)."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


def _with_config_path(renderer: structlog.typing.Processor) -> structlog.typing.Processor:
    """The renderer's lines with the config's path in their remedies (common/remedies.py)."""

    def render(logger: object, method: str, event: structlog.typing.EventDict) -> str:
        return rendered(str(renderer(logger, method, event)))

    return render


def _printable_values(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Makes values from other sources safe for a terminal (common/printable.py); a stack trace keeps its lines."""
    del logger, method
    return {key: _printable_value(key, value) for key, value in event.items()}


def _printable_value(key: str, value: object) -> object:
    if isinstance(value, int | float | None):
        return value
    return printable(str(value)) if key == "exception" else one_line(str(value))


def set_up_logs(settings: LogSettings, service: str) -> FilteringBoundLogger:
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    people = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor
    if people:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    else:
        renderer = structlog.processors.JSONRenderer(sort_keys=False, default=str)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([_printable_values] if people else []),
            _with_config_path(renderer),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Lines())),
        cache_logger_on_first_use=False,
    )
    logger: FilteringBoundLogger = structlog.get_logger(service=service)
    return logger
