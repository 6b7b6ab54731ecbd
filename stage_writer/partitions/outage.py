"""How long the store or Kafka has failed; the service ends when that lasts for too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import KafkaDeltaExpressError

if TYPE_CHECKING:
    from common.errors import BrokerError, StoreError
    from common.ports import Clock

GIVE_UP_AFTER_S = 300.0


class Outage:
    """Begins with a failure, and ends with the next success."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether the last attempt failed."""
        return self._since_s is not None

    def failed(self, error: StoreError | BrokerError) -> None:
        """Raises the error once failures have lasted for `GIVE_UP_AFTER_S`."""
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s > GIVE_UP_AFTER_S:
            # One kind for all, refusals included: access that is denied now may be granted again after a restart.
            raise KafkaDeltaExpressError(error.problem, error.remedy) from error

    def ended(self) -> None:
        """An attempt succeeded."""
        self._since_s = None
