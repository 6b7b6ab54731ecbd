"""Which fast tests cover a critical module."""

from __future__ import annotations

_LOADER = "tests/unit/delta_loader"
_WRITER = "tests/unit/stage_writer"
_PLAN_LAWS = ("tests/property/test_planner_laws.py", "tests/property/test_straddle_laws.py")
_DECODING = (f"{_WRITER}/test_decode.py", "tests/property/test_decode_agrees.py", "tests/property/test_rescue.py")
_WINDOWS = (
    f"{_WRITER}/topologies",
    "tests/property/test_topology_windows.py",
    "tests/property/test_state_stores.py",
    "tests/property/test_topology_tasks.py",
)
TESTS = {
    "common.stage.chain": ("tests/unit/common/test_chain.py", "tests/property/test_chain.py"),
    "stage_writer.shell.staging": (
        f"{_WRITER}/test_staging.py",
        f"{_WRITER}/test_service.py",
        f"{_WRITER}/test_outboxes.py",
        f"{_WRITER}/test_table_compatibility.py",
        f"{_WRITER}/tasks/test_states.py",
        "tests/unit/test_bootstrap_meets_writers.py",
        "tests/unit/test_generations.py",
    ),
    "stage_writer.core.freshness": (f"{_WRITER}/test_freshness.py", f"{_WRITER}/test_service.py"),
    "delta_loader.core.plan": (
        f"{_LOADER}/test_plan.py",
        f"{_LOADER}/test_service.py",
        f"{_LOADER}/test_identity.py",
        f"{_LOADER}/test_many_partitions.py",
        f"{_LOADER}/test_merged_loads.py",
        f"{_LOADER}/test_forged_markers.py",
        f"{_LOADER}/test_routes.py",
        *_PLAN_LAWS,
    ),
    "delta_loader.core.settle": (
        f"{_LOADER}/test_commits.py",
        f"{_LOADER}/test_valid_through.py",
        f"{_LOADER}/test_many_partitions.py",
        f"{_LOADER}/test_merged_loads.py",
        "tests/property/test_idle.py",
        *_PLAN_LAWS,
    ),
    "delta_loader.streams.settling": (
        f"{_LOADER}/test_service.py",
        f"{_LOADER}/test_interplay.py",
        f"{_LOADER}/test_identity.py",
        f"{_LOADER}/test_merged_loads.py",
    ),
    "delta_loader.core.commits": (
        f"{_LOADER}/test_commits.py",
        f"{_LOADER}/test_routes.py",
        f"{_LOADER}/test_identity.py",
        f"{_LOADER}/test_service.py",
        f"{_LOADER}/test_many_partitions.py",
        "tests/property/test_straddle_laws.py",
    ),
    "delta_loader.core.lease": (f"{_LOADER}/test_lease.py", "tests/property/test_lease_histories.py"),
    "delta_loader.lease": (
        f"{_LOADER}/test_lease.py",
        "tests/contract/test_lease.py",
        f"{_LOADER}/test_service.py",
        "tests/unit/test_status_views.py",
        "tests/property/test_lease_histories.py",
    ),
    "stage_writer.core.decoding.strict": _DECODING,
    "stage_writer.topologies.dsl.windows": _WINDOWS,
    "stage_writer.topologies.stores.window": _WINDOWS,
    "stage_writer.topologies.stores.expiry": _WINDOWS,
}
"""By module."""
