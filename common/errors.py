"""All errors that this project raises on purpose, under one root.

Rules: an error states the problem (with the key, file or offset) and the remedy. Entry points print the two sentences
and choose the exit code; a user's mistake never prints a stack trace. An exception that is not below
`KafkaDeltaExpressError` is a bug.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """The exit status of this project's commands; other programs rely on these numbers."""

    DONE = 0
    FAILED = 1
    """A retry may help: a service is unavailable."""
    USAGE = 2
    """Wrong usage or config: a retry changes nothing."""
    HELD = 3
    """All possible work is done; something is held or incompatible, and waits for an operator."""

    @classmethod
    def most_significant(cls, codes: Iterable[ExitCode]) -> ExitCode:
        """The most significant one: wrong usage before a failure, a failure before a hold, and that before success."""
        exit_codes = set(codes)
        return next((code for code in (cls.USAGE, cls.FAILED, cls.HELD) if code in exit_codes), cls.DONE)


class KafkaDeltaExpressError(Exception):
    """The root. ``problem`` states what is wrong and where, ``remedy`` how to fix it."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  → {self.remedy}" if self.remedy else self.problem


class HeldError(KafkaDeltaExpressError):
    """All possible work is done; the rest waits for an operator."""

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
    """A SQL expression of a stream is incompatible with the record's fields, or is not a scalar expression."""


class StoreError(KafkaDeltaExpressError):
    """An object store refused a call, or lacks an operation that the chain needs."""


class UnsafeStoreError(StoreError):
    """The store does not honor conditional writes, so no chain can be kept in it."""

    exit_code = ExitCode.USAGE


class StoreRefusedError(StoreError):
    """The store is reachable and refuses: wrong credentials, a missing permission, a bucket that does not exist."""

    exit_code = ExitCode.USAGE


class BrokerError(KafkaDeltaExpressError):
    """Kafka cannot be reached, or responded with an error that stops the work."""


class BrokerRefusedError(BrokerError):
    """Kafka is reachable and refuses: wrong credentials, an untrusted certificate, a missing permission."""

    exit_code = ExitCode.USAGE


class RegistryError(KafkaDeltaExpressError):
    """The schema registry cannot be reached, or does not return a schema's type."""


class MarkerError(KafkaDeltaExpressError):
    """A done marker's name or content cannot be read, or contradicts itself."""


class NewerFormatError(MarkerError):
    """An object in the stage has a format that only a newer release reads."""


class UnderRepairError(MarkerError):
    """A repair has moved a chain's origin, but not yet the older marker where the next one has to be."""


class StateError(MarkerError):
    """The state of a topology's task, which a marker names, is missing or unreadable."""


class TableError(KafkaDeltaExpressError):
    """A Delta table cannot be read, created or appended to."""


class NotCompatibleError(TableError):
    """A Delta table cannot accept a stream's data until an operator changes one of them."""

    exit_code = ExitCode.HELD


class DownloadError(KafkaDeltaExpressError):
    """A file that is downloaded by name and checksum could not be fetched."""


class BuildError(KafkaDeltaExpressError):
    """A part that is compiled on this machine could not be built."""
