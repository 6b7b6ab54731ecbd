"""The mutants that are the same program, or one that is as good: no test can see them, or should."""

_RISES = "the numbers of duplicates only have to rise"
_RANGE = "a range of one window gives the same"
_ONCE = "in a message that gives each field once, none is found twice"
_IN_1970 = "no file was made in 1970"
_AGAIN = "what is remembered is made again"

EQUIVALENT: dict[str, dict[str, str]] = {
    "common.stage.chain_origins": {
        "_position: None if stored is None else Position(stored) → None if False else Position(stored)": (
            "a position is a number of its own to the type checker alone"
        ),
        "origin_to_bytes: True → False": "no part of an origin has an alias",
        "listed_origin: _newest_path(store, partition) or path → _newest_path(store, partition) or False": (
            "an origin that was read is listed, too: it is never deleted"
        ),
    },
    "delta_loader.stage.identity": {
        "StreamIdentity._loaded_under: if other is None: → if False:": "the rest then returns None as well, later",
    },
    "common.stage.repair_lock": {
        "last_repair: None if data is None else RepairEntry.from_bytes(data) → "
        "None if False else RepairEntry.from_bytes(data)": "a turn is never deleted",
    },
    "common.stage.chain": {
        "read_chain: if marker.previous is not None: → if True:": "no segment ends at no marker",
        (
            "emptied: None if manifest.previous is None else empty.get(manifest.previous) → "
            "None if False else empty.get(manifest.previous)"
        ): "no marker is at no position",
    },
    "delta_loader.maintenance.cleaning.rules": {
        "_lines: tally.oldest_ms or 0 → tally.oldest_ms or False": "what is counted has an age",
        "_lines: 0 → 1": "what is counted has an age",
        "as_json: 2 → 3": "it is the same JSON",
    },
    "delta_loader.lease.holder": {
        "LoaderLease._observe: if highest >= before.next_epoch: → if True:": (
            "an epoch that is known is read once more, and changes nothing"
        )
    },
    "delta_loader.lease.rules": {
        "observed: epoch <= state.observed → epoch < state.observed": (
            "what an epoch says never changes, and to see it again changes nothing"
        )
    },
    "delta_loader.plan.plan": {
        "_foreign: _start(marker) < position → _start(marker) <= position": "what begins there is held anyway",
        "_age_ms: 0 → 1": "no marker was written in 1970",
    },
    "delta_loader.load.catch_up": {
        "CatchUp._load: tables.position(missing.url, missing.partition) or start → "
        "tables.position(missing.url, missing.partition) or False": "no position is below zero",
        "CatchUp._note: main is not None and [deferred.span.end for deferred in now] == [missing.span.end] → "
        "True and [deferred.span.end for deferred in now] == [missing.span.end]": "no table, no deferred range",
        "CatchUp._next: if load is not None: → if True:": "a run has a marker, and a load at least one of them",
    },
    "delta_loader.load.replace_ranges": {
        "Replacements._in_order: [target for target in map(self._target, stream.tables) if target is not None] "
        "if requests[1:] else [] → [target for target in map(self._target, stream.tables) if target is not None] "
        "if True else []": "a request alone is in order, and is held by a table that cannot be read anyway",
        "Replacements._with_columns_of: self._target(target.url) or target → self._target(target.url) or False": (
            "a table that was just altered is there"
        ),
        "Replacements._secondary_targets: target is None and staged is not None and staged.files → "
        "True and staged is not None and staged.files": "to make a table that is there changes nothing",
    },
    "delta_loader.load.fence": {
        "RollbackFence.holds: 1 → 2": "a partition that is held keeps its reason",
        "RollbackFence.partitions: context.rollbacks.of_other_topics(target) if loads else () → "
        "context.rollbacks.of_other_topics(target) if True else ()": "they are recorded by commits, and none is made",
    },
    "delta_loader.load.vacuum_guard": {
        "VacuumGuard.renewed: 0 → 1": _IN_1970,
        "VacuumGuard.renewed: 0 → 1 (2)": _IN_1970,
        "VacuumGuard.renewed: 0 → 1 (3)": _IN_1970,
        "VacuumGuard.renewed: True → False": "there are as many copies as files",
        "VacuumGuard.renewed: if not old: → if False:": "a commit without an old file is the same",
    },
    "delta_loader.load.rollback": {
        "RollbackDetector.of_other_topics: 0 → 1": "of these chains a commit only records the names",
        "_remedy: min(back.positions) → max(back.positions)": "the command is shown for any of the partitions",
    },
    "stage_writer.decode.strict": {
        "_timestamp: 9 → 10": "an offset has a sign and hours, or neither",
        "_exact: 0 → 1": "ten times zero is zero",
        "_struct.convert: len(given) < len(value) and (twice := _given_twice(value, names)) is not None → "
        "True and (twice := _given_twice(value, names)) is not None": _ONCE,
        "_struct.convert: len(given) < len(value) → len(given) <= len(value)": _ONCE,
    },
    "stage_writer.chains": {
        "StagedChains._tail_of_empty: below is None or below.manifest is None → below is None or False": (
            "the marker below is one with content"
        ),
        "StagedChains._tail: 0 → 1": "no content is one byte long",
        "StagedChains._below: self._store.read(path) or b'' → self._store.read(path) or False": (
            "no content, either way"
        ),
    },
    "stage_writer.stage.staging": {
        "ObjectStage.new_file: True → False": "a file has as many values as its table has partition columns",
    },
    "bootstrap.apply.stage": {
        "_put_late_ones_aside: marker.name.start > plan.position → marker.name.start >= plan.position": (
            "what continues a marker that was put aside starts above the new end"
        ),
        "rewind: 1 → 2 (2)": "of the same content there is one copy",
    },
    "bootstrap.plans.restart": {
        "_separate_chain: loaded or ends.low → loaded or False": "no position is below zero",
    },
    "bootstrap.plans.plan": {
        "_not_in_kafka: position > ends.high → position >= ends.high": "the end itself is in Kafka: it is not refused"
    },
    "bootstrap.plans.repair": {
        "plan_rewind: marker is not None and marker.manifest is not None → marker is not None and True": (
            "an operator's marker has content"
        ),
        "loaded_ahead: table or Position(0) → table or False": "the same number",
        "_origin: end is not None and end == position → True and end == position": "a position is not None",
        "_highest_sound: to <= begin → to < begin": "the begin itself is sound",
        "_highest_sound: state.table or begin → state.table or False": "no position is below the begin",
    },
    "bootstrap.plans.task_states": {
        "TaskStates.at: position < lowest → position <= lowest": "at the lowest one the state is known",
        "TaskStates.highest_sound: known_position < position → known_position <= position": (
            "at the position itself the state is not known"
        ),
        "TaskStates.outboxes: name is not None and name.start < position → True and name.start < position": (
            "a marker that names anything else cannot be read"
        ),
    },
    "stage_writer.outbox.delivery": {
        "Delivery._produce_all: 1 → 2": "no position is below zero",
        "_parts: 1 → 2 (3)": "no record has a single byte",
    },
    "stage_writer.outbox.records": {
        "undelivered: outgoing.records if keep.all() else outgoing.records.filter(pa.array(keep)) → "
        "outgoing.records if False else outgoing.records.filter(pa.array(keep))": "a filter that keeps all is a copy",
        "with_dead_letters_to: True → False": "the columns of a table have the same length",
        "with_dead_letters_to: given != topic and is_dead_letter(headers.as_py() or (), chain.app_id, number, offset) "
        "→ True and is_dead_letter(headers.as_py() or (), chain.app_id, number, offset)": "it has that topic already",
        "with_dead_letters_sent: False → True": "the rows have a table for each format",
    },
    "delta_loader.load.refused_to_topic": {
        "RefusedToTopic.__call__: 1 → 2": "nothing was refused, either way",
        "_rows: True → False": "the columns of a batch have the same length",
        "_sent_to: before.position > end.position → before.position >= end.position": "the same record",
    },
    "stage_writer.partitions.resume_points": {
        "ResumePoints.of_all: True → False": "there are as many results as partitions",
    },
    "stage_writer.topologies.stores.timed": {
        "TimedStore._admits: time_ms > highest_ms → time_ms >= highest_ms": "the highest time is set to what it is",
        "WindowStore.__init__: 0 → 1": _RISES,
        "WindowStore.put: 1 → 2": _RISES,
        "WindowStore.fetch: if self._next is not None or not NEVER_MS <= window_start_ms <= FOREVER_MS: → if True:": (
            _RANGE
        ),
        "WindowStore.fetch: NEVER_MS <= window_start_ms <= FOREVER_MS → NEVER_MS < window_start_ms <= FOREVER_MS": (
            _RANGE
        ),
        "WindowStore.fetch: NEVER_MS <= window_start_ms <= FOREVER_MS → NEVER_MS <= window_start_ms < FOREVER_MS": (
            "the last time of all, 146 million years from now, which no range includes"
        ),
        "WindowStore._entry: if last is not None and last[0] is key and (last[1] == start_ms): → if False:": _AGAIN,
        "WindowStore._entry: 0 → 1": _AGAIN,
        "WindowStore._entry: 1 → 2": _AGAIN,
    },
}
"""By module and mutant: why."""
