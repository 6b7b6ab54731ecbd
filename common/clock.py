"""The machine's clock: `common.ports.Clock` in production."""

import time

# Linux has a clock that also runs while the machine is suspended, as clocks elsewhere do.
_STEADY = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    def monotonic_s(self) -> float:
        return time.monotonic() if _STEADY is None else time.clock_gettime(_STEADY)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)
