"""Status of services for tests: healthy, in trouble, with a thousand partitions."""

from common.pages.model import (
    DeadLetters,
    Event,
    Figure,
    FlowStep,
    Lag,
    PartitionRow,
    Problem,
    ProblemLevel,
    Sample,
    State,
    Status,
    StreamFlow,
    Unit,
)

STOPS = ("Loaded", "Staged", "In Kafka")


def loader_status(now_ms: int, *, broken: bool = False, partitions: int = 12) -> Status:
    """A delta loader of two streams."""
    rows = [_row("orders", number, broken=broken) for number in range(partitions)]
    rows += [_row("page-views", number, broken=False) for number in range(4)]
    return Status(
        service="delta-loader",
        version="1.0.0",
        now_ms=now_ms,
        started_ms=now_ms - 86_400_000,
        state="waiting for the next load",
        verdict=_verdict(broken=broken),
        figures=(
            Figure("Last successful load", now_ms - (3_900_000 if broken else 41_000), Unit.SINCE),
            Figure("Next load", now_ms + 19_000, Unit.UNTIL),
            Figure("Waiting markers", 1_284 if broken else 3, Unit.COUNT),
            Figure("Rows since start", 48_201_377, Unit.COUNT),
            Figure("Memory", 212 * 2**20, Unit.BYTES),
        ),
        problems=_problems() if broken else (),
        streams=(
            _flow("orders", partitions, now_ms, held=2 if broken else 0, lag_s=3_840.0 if broken else 18.0),
            _flow("page_views", 4, now_ms, held=0, lag_s=0.0),
        ),
        stops=STOPS,
        partitions=tuple(rows),
        events_title="Recent commits",
        events=tuple(_event(now_ms, number) for number in range(8)),
        dead_letters=_dead_letters() if broken else (),
    )


def writer_status(now_ms: int) -> Status:
    """A stage writer that is short of memory and paused by request."""
    rows = tuple(
        PartitionRow(
            stream="orders",
            topic="orders",
            partition=number,
            state=State.PAUSED if number < 3 else State.WELL,
            positions=(10_000, 10_000 + 120 * (12 - number), 11_600 + number),
            lag=Lag(1_600 + number, 4.0 + number),
            note="paused: memory is short" if number < 3 else "",
        )
        for number in range(12)
    )
    stops = (
        FlowStep("Kafka", None, "139,272 read"),
        FlowStep("Read", Lag(1_040, 1.0)),
        FlowStep("Staged", Lag(9_360, 12.0)),
    )
    return Status(
        service="stage-writer",
        version="1.0.0",
        now_ms=now_ms,
        started_ms=now_ms - 7_200_000,
        state="staging",
        verdict="12 partitions of 1 stream are staged by this writer.",
        figures=(
            Figure("Buffers", 410 * 2**20, Unit.BYTES, of=512.0 * 2**20),
            Figure("Memory of the process", 790 * 2**20, Unit.BYTES),
            Figure("Last flush", now_ms - 2_000, Unit.SINCE),
            Figure("Paused for memory", 3, Unit.COUNT, of=12),
        ),
        problems=(
            Problem(
                ProblemLevel.WARNING, "Paused by request", "Since 12:04:11 nothing is read.", "`curl -X POST …/resume`"
            ),
        ),
        streams=(StreamFlow("orders", "s3://lake/tables/orders", "12 partitions", stops, 12, 0, None, None),),
        stops=("Staged", "Read", "In Kafka"),
        partitions=rows,
        events_title="Recent flushes",
        events=tuple(_event(now_ms, number, "age") for number in range(5)),
        dead_letters=_dead_letters(),
    )


def _verdict(*, broken: bool) -> str:
    if broken:
        return "2 Kafka partitions are held and 1 stream fails; loading of the others continues."
    return "2 streams, 16 Kafka partitions; all that is staged is loaded, or will be by the next load."


def _flow(app_id: str, partitions: int, now_ms: int, *, held: int, lag_s: float) -> StreamFlow:
    waiting = int(lag_s * 1_250)
    return StreamFlow(
        app_id=app_id,
        table=f"s3://lake/tables/{app_id}",
        way=f"{partitions:,} partitions, loaded by add",
        stops=(
            FlowStep("Kafka", None, f"{partitions * 4_100_000:,} records"),
            FlowStep("Staged", Lag(1_430 if lag_s else 0, 6.0 if lag_s else 0.0), "3 markers waiting"),
            FlowStep("Loaded", Lag(waiting, lag_s), "version 4,211"),
        ),
        partitions=partitions,
        held=held,
        valid_through_ms=now_ms - int(lag_s * 1000) - 4_000,
        level=ProblemLevel.ERROR if held else None,
    )


def _row(topic: str, number: int, *, broken: bool) -> PartitionRow:
    held = broken and number in {3, 7}
    behind = 0 if number % 3 == 0 else (number * 7_919) % 2_400
    lag = 1_200_000 // (number + 10) if held else behind
    loaded = 4_100_000 + number * 17
    return PartitionRow(
        stream=topic.replace("-", "_"),
        topic=topic,
        partition=number,
        state=State.HELD if held else State.BEHIND if behind else State.WELL,
        positions=(loaded, loaded + int(lag * 0.8), loaded + lag),
        lag=Lag(lag, 3_840.0 - number if held else behind / 130),
        note="nothing is staged for the positions" if held else "",
    )


def _problems() -> tuple[Problem, ...]:
    rewind = "bootstrap rewind ⟨config⟩ --topic orders --partition 3 --to 4100051 --yes"
    skip = "bootstrap skip ⟨config⟩ --topic orders --partition 3 --to 4172051 --yes"
    return (
        Problem(
            ProblemLevel.ERROR,
            "orders/3 is held (gap)",
            "nothing is staged for the positions [4100051, 4172051) of orders/3",
            f"stage them again with `{rewind}`, or give them up with `{skip}`",
            also=1,
        ),
        Problem(
            ProblemLevel.WARNING,
            "page_views failed twice in a row",
            "a commit to the Delta table s3://lake/tables/page_views failed: <b>timeout</b>",
            "nothing was written; the next run tries again",
        ),
        Problem(
            ProblemLevel.WARNING,
            "page-views/2 waits to be staged",
            "18,211 records of page-views/2 waited in Kafka for 21 minutes when the stage was last inspected, and no "
            "writer had staged them.",
            "check that writers run, and see their page, `/healthcheck` or log",
        ),
    )


def _event(now_ms: int, number: int, note: str = "") -> Event:
    return Event(
        time_ms=now_ms - 41_000 - number * 60_000,
        stream="orders" if number % 3 else "page_views",
        what=f"version {4_211 - number:,}" if not note else f"orders/{number} [{number * 100:,}, {number * 240:,})",
        rows=182_344 - number * 1_311,
        files=31 + number,
        size_bytes=48_000_000 + number * 9_000,
        seconds=0.84 + number / 10,
        note=note,
    )


def _dead_letters() -> tuple[DeadLetters, ...]:
    return (
        DeadLetters(
            "orders",
            "wrong_type",
            1_204,
            (Sample("orders/3 @ 4,100,217", '{"id": "xxx", "amount": 99.99, "at": "9999-99-99x99:99:99x"}'),),
        ),
        DeadLetters("orders", "invalid_json", 17),
    )
