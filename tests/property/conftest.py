"""How the property tests run.

`make test` tries the same examples every time, so that what it says depends on the code alone. `make properties` tries
others, and ten times as many where a test does not say how many.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _COMMON, derandomize=True)
settings.register_profile("other", _COMMON, max_examples=1000)
settings.load_profile(os.environ.get("PROPERTIES", "same"))
