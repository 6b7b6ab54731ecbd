"""Every error that this project raises on purpose, under one root.

Rules: an error says what is wrong (naming the key, file or offset), and what to do about it. Entry points print the
two sentences and choose the exit code; nobody prints a stack trace for something that a user did. An exception that
is not below `KafkaDeltaExpressError` is a bug.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class ExitCode(IntEnum):
    """How a command of this project ends; other programs rely on these numbers."""

    DONE = 0
    FAILED = 1
    """Trying again may help: a service is away."""
    USAGE = 2
    """Wrong use or config: trying again changes nothing."""
    HELD = 3
    """Done what could be done; something is held or not compatible, and waits for a person."""

    @classmethod
    def of(cls, codes: Iterable[ExitCode]) -> ExitCode:
        """The one that tells most: wrong use before a failure, a failure before what waits, and that before done."""
        found = set(codes)
        return next((code for code in (cls.USAGE, cls.FAILED, cls.HELD) if code in found), cls.DONE)


class KafkaDeltaExpressError(Exception):
    """The root. ``problem`` names what is wrong and where; ``remedy`` says what to do about it."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  → {self.remedy}" if self.remedy else self.problem


class HeldError(KafkaDeltaExpressError):
    """What could be done is done; the rest waits for a person."""

    exit_code = ExitCode.HELD


class UsageError(KafkaDeltaExpressError):
    """A command was called in a way that cannot be carried out."""

    exit_code = ExitCode.USAGE


class ConfigError(KafkaDeltaExpressError):
    """A setting is missing, unknown, malformed, or contradicts another one."""

    exit_code = ExitCode.USAGE


class SchemaError(ConfigError):
    """A column list, a type or a table schema cannot be understood or cannot be used."""


class ExpressionError(ConfigError):
    """A SQL expression of a stream does not fit the record's fields, or is not a scalar expression."""


class StoreError(KafkaDeltaExpressError):
    """An object store refused a call, or does not do what the chain needs of it."""


class StoreUnfitError(StoreError):
    """The store does not honour conditional writes, so that no chain can be kept in it."""

    exit_code = ExitCode.USAGE


class StoreRefusedError(StoreError):
    """The store is there and says no: wrong credentials, a right that is missing, a bucket that does not exist."""

    exit_code = ExitCode.USAGE


class BrokerError(KafkaDeltaExpressError):
    """Kafka cannot be reached, or answered in a way that stops the work."""


class BrokerRefusedError(BrokerError):
    """Kafka is there and says no: wrong credentials, a certificate that is not believed, a right that is missing."""

    exit_code = ExitCode.USAGE


class RegistryError(KafkaDeltaExpressError):
    """The schema registry cannot be reached, or does not say what a schema is."""


class MarkerError(KafkaDeltaExpressError):
    """A done marker's name or content cannot be read, or contradicts itself."""


class NewerFormatError(MarkerError):
    """An object in the stage is of a form that only a newer release reads."""


class StateError(MarkerError):
    """The state of a topology's task, which a marker names, is missing or cannot be read."""


class TableError(KafkaDeltaExpressError):
    """A Delta table cannot be read, created or added to."""


class NotCompatibleError(TableError):
    """A Delta table does not take what the stream has for it until a person changes one of them."""

    exit_code = ExitCode.HELD


class DownloadError(KafkaDeltaExpressError):
    """A file that is fetched by name and checksum could not be had."""


class BuildError(KafkaDeltaExpressError):
    """A part that is compiled on this machine could not be."""
