"""Stage writers for tests."""

import structlog

from common.metrics import Metrics
from common.ports import Clock
from stage_writer.loop import StageWriter
from stage_writer.partitions.flush_decision import FlushLimits
from stage_writer.ports import ClaimVerdict, Converter, RecordSource
from stage_writer.runtime import SESSION_S, Attachments, Runtime, WriterOptions
from stage_writer.stage.staging import ObjectStage
from stage_writer.stopping import Stopping
from stage_writer.telemetry import WriterTelemetry
from tests.fakes.group import InTurn

REVOKE_TIMEOUT_S = 5.0


def always() -> ClaimVerdict:
    """A guard that permits every claim."""
    return ClaimVerdict.CLAIM


def limits_with(**changed: int) -> FlushLimits:
    """Limits that nothing reaches but an age of one second, unless changed."""
    bounds = {"flush_after_s": 1, "flush_bytes": 10**9, "flush_records": 10**9, "memory_bytes": 10**9}
    return FlushLimits(**{**bounds, **changed})


def runtime_of(clock: Clock, *, stopping: Stopping | None = None, dead_letter_alarm: float | None = None) -> Runtime:
    log, metrics = structlog.get_logger(), Metrics()
    telemetry = WriterTelemetry(clock, log, metrics, dead_letter_alarm=dead_letter_alarm)
    return Runtime(clock, log, metrics, telemetry, stopping or Stopping(clock.monotonic_s, REVOKE_TIMEOUT_S))


def new_writer(
    *converters: Converter,
    source: RecordSource,
    stage: ObjectStage,
    runtime: Runtime,
    limits: FlushLimits | None = None,
    session_s: float = SESSION_S,
    attachments: Attachments = Attachments(),  # noqa: B008 - frozen
) -> StageWriter:
    """A writer whose jobs run at once, in the loop's thread."""
    options = WriterOptions(limits or limits_with(), REVOKE_TIMEOUT_S, report_positions=True, session_s=session_s)
    return StageWriter(
        converters, options, source=source, stage=stage, workers=InTurn(), runtime=runtime, attachments=attachments
    )
