"""Which fast tests cover a critical module."""

_LOADER = "tests/unit/delta_loader"
_WRITER = "tests/unit/stage_writer"
_PLAN_LAWS = ("tests/property/test_planner_laws.py", "tests/property/test_overlap_laws.py")
_NEW_CHAINS = (
    "tests/unit/test_generations.py",
    "tests/unit/test_superseded_markers.py",
    f"{_LOADER}/stage/test_judged_markers.py",
    "tests/unit/bootstrap/plans/test_plans.py",
    f"{_LOADER}/load/test_identity.py",
    f"{_LOADER}/load/test_unknown_history.py",
)
_WINDOWS = f"{_WRITER}/topologies/test_windows.py"
_STORES = (_WINDOWS, f"{_WRITER}/topologies/test_stores.py", "tests/property/test_state_stores.py::TestHistories")
TESTS = {
    "common.stage.chain": ("tests/unit/common/stage/test_chain.py", "tests/property/test_chain.py"),
    "stage_writer.chains": (
        f"{_WRITER}/stage/test_staging.py",
        f"{_WRITER}/test_flushes.py",
        "tests/unit/test_emptied_markers.py",
    ),
    "stage_writer.stage.staging": (
        f"{_WRITER}/stage/test_staging.py",
        f"{_WRITER}/test_flushes.py",
        f"{_WRITER}/outbox/test_outboxes.py",
        f"{_WRITER}/tasks/test_states.py",
    ),
    "stage_writer.partitions.freshness": (f"{_WRITER}/partitions/test_freshness.py", f"{_WRITER}/test_service.py"),
    "delta_loader.plan.plan": (
        f"{_LOADER}/plan/test_plan.py",
        f"{_LOADER}/test_service.py",
        f"{_LOADER}/load/test_identity.py",
        f"{_LOADER}/plan/test_commits.py",
        f"{_LOADER}/load/test_merged_loads.py",
        f"{_LOADER}/stage/test_judged_markers.py",
        f"{_LOADER}/load/test_routes.py",
        *_PLAN_LAWS,
    ),
    "common.stage.chain_origins": (
        "tests/unit/common/stage/test_markers.py",
        "tests/unit/common/stage/test_merged.py",
        f"{_WRITER}/stage/test_staging.py",
        f"{_WRITER}/tasks/test_states.py",
        f"{_WRITER}/test_service.py",
        *_NEW_CHAINS,
    ),
    "delta_loader.stage.identity": (
        f"{_LOADER}/stage/test_judged_markers.py",
        f"{_LOADER}/stage/test_strays.py",
        f"{_LOADER}/test_service.py",
        "tests/unit/test_emptied_markers.py",
        *_NEW_CHAINS,
    ),
    "delta_loader.stage.generations": _NEW_CHAINS,
    "delta_loader.stage.stray_rules": (f"{_LOADER}/stage/test_strays.py", "tests/property/test_strays.py"),
    "delta_loader.maintenance.cleaning.clean": (f"{_LOADER}/maintenance/test_clean.py",),
    "delta_loader.maintenance.cleaning.rules": (f"{_LOADER}/maintenance/test_clean.py",),
    "stage_writer.partitions.claim_guards": (
        f"{_WRITER}/partitions/test_claim_guards.py",
        f"{_WRITER}/test_flushes.py",
        f"{_WRITER}/test_service.py",
    ),
    "bootstrap.plans.plan": ("tests/unit/bootstrap/plans/test_plans.py",),
    "bootstrap.plans.repair": (
        "tests/unit/bootstrap/plans/test_plans.py",
        "tests/unit/common/stage/test_put_aside.py",
        f"{_WRITER}/tasks/test_states.py",
        f"{_WRITER}/fetch/test_merging.py",
        "tests/property/test_repairs.py",
    ),
    "bootstrap.plans.task_states": (
        "tests/unit/common/stage/test_put_aside.py",
        f"{_WRITER}/tasks/test_states.py",
    ),
    "stage_writer.partitions.resume_points": (
        f"{_WRITER}/partitions/test_resume_points.py",
        f"{_WRITER}/test_service.py",
        f"{_WRITER}/fetch/test_merging.py",
        "tests/unit/test_generations.py",
    ),
    "bootstrap.plans.accept": (
        "tests/unit/bootstrap/test_accept.py",
        f"{_LOADER}/load/test_unknown_history.py",
    ),
    "bootstrap.plans.restart": (
        "tests/unit/bootstrap/plans/test_records.py",
        "tests/unit/bootstrap/test_work.py",
        "tests/unit/common/stage/test_put_aside.py",
        f"{_LOADER}/load/test_merged_loads.py",
        *_NEW_CHAINS,
    ),
    "bootstrap.plans.state": (
        "tests/unit/bootstrap/plans/test_plans.py",
        "tests/unit/common/stage/test_put_aside.py",
        "tests/unit/test_emptied_markers.py",
        f"{_WRITER}/tasks/test_states.py",
        *_NEW_CHAINS,
    ),
    "bootstrap.apply.stage": (
        "tests/unit/bootstrap/plans/test_plans.py",
        "tests/unit/bootstrap/apply/test_repair_lock.py",
        "tests/unit/bootstrap/test_accept.py",
        "tests/unit/test_bootstrap_meets_writers.py",
        f"{_LOADER}/load/test_identity.py",
        f"{_LOADER}/load/test_merged_loads.py",
        "tests/unit/test_generations.py",
    ),
    "bootstrap.apply.loaders": (
        "tests/unit/bootstrap/plans/test_plans.py",
        "tests/unit/bootstrap/apply/test_live_loaders.py",
        f"{_LOADER}/load/test_merged_loads.py",
    ),
    "common.stage.put_aside": ("tests/unit/common/stage/test_put_aside.py",),
    "delta_loader.load.settle": (f"{_LOADER}/load/test_settling.py", "tests/property/test_idle.py"),
    "delta_loader.load.settling": (f"{_LOADER}/load/test_settling.py", f"{_LOADER}/test_service.py"),
    "delta_loader.load.committer": (
        f"{_LOADER}/load/test_interplay.py",
        f"{_LOADER}/load/test_refusals.py",
        f"{_LOADER}/load/test_unknown_history.py",
        f"{_LOADER}/load/test_conflict_backoff.py",
        f"{_LOADER}/test_service.py",
    ),
    "delta_loader.load.catch_up": (
        f"{_LOADER}/load/test_routes.py",
        f"{_LOADER}/load/test_interplay.py",
        f"{_LOADER}/load/test_merged_loads.py",
        f"{_LOADER}/load/test_refusals.py",
    ),
    "delta_loader.load.deferred": (f"{_LOADER}/load/test_routes.py",),
    "delta_loader.load.replace_steps": (f"{_LOADER}/load/test_replace.py", f"{_LOADER}/load/test_interplay.py"),
    "delta_loader.load.replace_ranges": (f"{_LOADER}/load/test_replace.py", f"{_LOADER}/load/test_interplay.py"),
    "delta_loader.tables.commits": (
        f"{_LOADER}/plan/test_commits.py",
        f"{_LOADER}/load/test_routes.py",
        f"{_LOADER}/load/test_identity.py",
        f"{_LOADER}/test_service.py",
        "tests/property/test_overlap_laws.py",
    ),
    "delta_loader.lease.rules": (f"{_LOADER}/lease/test_loader_lease.py", "tests/property/test_lease_histories.py"),
    "delta_loader.lease.holder": (
        f"{_LOADER}/lease/test_loader_lease.py",
        "tests/contract/test_lease.py",
        "tests/property/test_lease_histories.py",
    ),
    "stage_writer.outbox.delivery": (f"{_WRITER}/outbox/test_delivery.py",),
    "stage_writer.outbox.outlets": (f"{_WRITER}/outbox/test_outlets.py",),
    "stage_writer.outbox.records": (f"{_WRITER}/outbox/test_delivery.py", f"{_WRITER}/outbox/test_outboxes.py"),
    "delta_loader.load.refused_to_topic": (f"{_LOADER}/load/test_refused_to_topic.py",),
    "stage_writer.decode.strict": (f"{_WRITER}/decode/test_strict.py", f"{_WRITER}/decode/test_decode.py"),
    "stage_writer.topologies.dsl.windows": (_WINDOWS,),
    "stage_writer.topologies.stores.timed": _STORES,
}
"""By module."""
