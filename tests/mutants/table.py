"""Which fast tests cover a critical module."""

from __future__ import annotations

_LOADER = "tests/unit/delta_loader"
_WRITER = "tests/unit/stage_writer"
_PLAN_LAWS = ("tests/property/test_planner_laws.py", "tests/property/test_straddle_laws.py")
_WINDOWS = f"{_WRITER}/topologies/test_windows.py"
_STORES = (_WINDOWS, f"{_WRITER}/test_stores.py", "tests/property/test_state_stores.py::TestHistories")
TESTS = {
    "common.stage.chain": ("tests/unit/common/test_chain.py", "tests/property/test_chain.py"),
    "stage_writer.stage.staging": (
        f"{_WRITER}/test_staging.py",
        f"{_WRITER}/test_flushes.py",
        f"{_WRITER}/test_outboxes.py",
    ),
    "stage_writer.partitions.freshness": (f"{_WRITER}/test_freshness.py", f"{_WRITER}/test_service.py"),
    "delta_loader.plan.plan": (
        f"{_LOADER}/test_plan.py",
        f"{_LOADER}/test_service.py",
        f"{_LOADER}/test_identity.py",
        f"{_LOADER}/test_many_partitions.py",
        f"{_LOADER}/test_merged_loads.py",
        f"{_LOADER}/test_forged_markers.py",
        f"{_LOADER}/test_routes.py",
        *_PLAN_LAWS,
    ),
    "delta_loader.load.settle": (f"{_LOADER}/test_settling.py", "tests/property/test_idle.py"),
    "delta_loader.load.settling": (f"{_LOADER}/test_settling.py", f"{_LOADER}/test_service.py"),
    "delta_loader.load.replace_steps": (f"{_LOADER}/test_replace.py", f"{_LOADER}/test_interplay.py"),
    "delta_loader.load.replace_ranges": (f"{_LOADER}/test_replace.py", f"{_LOADER}/test_interplay.py"),
    "delta_loader.tables.commits": (
        f"{_LOADER}/test_commits.py",
        f"{_LOADER}/test_routes.py",
        f"{_LOADER}/test_identity.py",
        f"{_LOADER}/test_service.py",
        f"{_LOADER}/test_many_partitions.py",
        "tests/property/test_straddle_laws.py",
    ),
    "delta_loader.lease.rules": (f"{_LOADER}/test_lease.py", "tests/property/test_lease_histories.py"),
    "delta_loader.lease.holder": (
        f"{_LOADER}/test_loader_lease.py",
        "tests/contract/test_lease.py",
        "tests/property/test_lease_histories.py",
    ),
    "stage_writer.decode.strict": (f"{_WRITER}/test_strict.py", f"{_WRITER}/test_decode.py"),
    "stage_writer.topologies.dsl.windows": (_WINDOWS,),
    "stage_writer.topologies.stores.window": _STORES,
    "stage_writer.topologies.stores.expiry": _STORES,
}
"""By module."""
