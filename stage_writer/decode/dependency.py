"""Dependencies that messages wait for before they can be converted."""

from abc import ABC, abstractmethod

from common.errors import KafkaDeltaExpressError


class Dependency(ABC):
    """A dependency that messages cannot be converted without, and that is fetched in the background."""

    __slots__ = ()

    @property
    @abstractmethod
    def error(self) -> KafkaDeltaExpressError:
        """The missing dependency, and the reason if known. Safe to read from any thread."""

    @property
    def is_expected(self) -> bool:
        """Whether waiting is part of the work so far, and no problem. Safe to read from any thread."""
        return False

    @property
    def changes_columns(self) -> bool:
        """Whether the messages then need other columns, so buffered rows must be flushed before them."""
        return False

    @abstractmethod
    def is_over(self) -> bool:
        """Whether it is available now. Never blocks; starts a new attempt when due."""
