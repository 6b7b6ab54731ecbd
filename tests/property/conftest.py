"""Hypothesis for the whole folder: nothing is timed, and a failure prints what replays it."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("project", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")
