"""Every error that this project raises on purpose, under one root.

Rules: an error says what is wrong (naming the key, file or offset), and what to do about it. Entry points print the
two sentences and choose the exit code; nobody prints a stack trace for something that a user did. An exception that
is not below `KafkaDeltaExpressError` is a bug.
"""

from __future__ import annotations


class KafkaDeltaExpressError(Exception):
    """The root. ``problem`` names what is wrong and where; ``remedy`` says what to do about it."""

    exit_code = 1

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  → {self.remedy}" if self.remedy else self.problem


class UsageError(KafkaDeltaExpressError):
    """A command was called in a way that cannot be carried out."""

    exit_code = 2


class ConfigError(KafkaDeltaExpressError):
    """A setting is missing, unknown, malformed, or contradicts another one."""

    exit_code = 2


class SchemaError(ConfigError):
    """A column list, a type or a table schema cannot be understood or cannot be used."""


class ExpressionError(ConfigError):
    """A SQL expression of a stream does not fit the record's fields, or is not a scalar expression."""


class StoreError(KafkaDeltaExpressError):
    """An object store refused a call, or does not do what the chain needs of it."""


class StoreUnfitError(StoreError):
    """The store does not honour conditional writes, so that no chain can be kept in it."""

    exit_code = 2


class StoreRefusedError(StoreError):
    """The store is there and says no: wrong credentials, a right that is missing, a bucket that does not exist."""


class BrokerError(KafkaDeltaExpressError):
    """Kafka cannot be reached, or answered in a way that stops the work."""


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


class DownloadError(KafkaDeltaExpressError):
    """A file that is fetched by name and checksum could not be had."""


class BuildError(KafkaDeltaExpressError):
    """A part that is compiled on this machine could not be."""
