"""What a message costs, from Kafka to the table: ``python -m benchmarks.writer`` (`make benchmark`).

All sides take the same topic in turns, on one machine in one run (`benchmarks.sides`). Each case is read once to warm
up, then ``--rounds`` times; the median counts. What is printed is CPU time, of all threads: two cores are two
CPU-seconds a second. The ratios hold elsewhere, the figures do not. ``--keep`` puts them into
``benchmarks/results.json``, from which `benchmarks.report` makes the page and its pictures.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks import results, spark
from benchmarks.cases import SECTIONS, cases, fill
from benchmarks.report import table
from benchmarks.results import Result
from benchmarks.sides import CONSUME, FROM_START, OURS, PIPELINE, SPARK, WITHOUT_C, Bench
from devservices.kafka import KafkaOptions, running_kafka

if TYPE_CHECKING:
    from benchmarks.cases import Case
    from benchmarks.measure import Cost

_SIDES = {
    "kinds": (CONSUME, PIPELINE, OURS, FROM_START, WITHOUT_C, SPARK),
    "avro": (OURS, WITHOUT_C, SPARK),
    "partitions": (PIPELINE, OURS, SPARK),
    "bad": (OURS,),
    "writers": (OURS,),
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    sections: Annotated[list[str] | None, typer.Argument(help=f"{', '.join(SECTIONS)}; all when absent")] = None,
    scale: Annotated[float, typer.Option(help="Of the number of messages.")] = 1.0,
    rounds: Annotated[int, typer.Option(help="Measured rounds.")] = 3,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the figures for the page.")] = False,  # noqa: FBT002
) -> None:
    """Measure and print."""
    unknown = set(sections or ()) - set(SECTIONS)
    if unknown:
        msg = f"{', '.join(sorted(unknown))}: known are {', '.join(SECTIONS)}"
        raise typer.BadParameter(msg)
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(KafkaOptions(properties={"log.segment.bytes": "1073741824"})))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        session = spark.start(kafka.bootstrap_servers, folder)
        stack.callback(session.stop)
        bench = Bench(kafka, session, folder)
        stack.callback(bench.close)
        for section in sections or SECTIONS:
            found = []
            for case in cases(section, scale):
                found.append(_measure(bench, case, rounds))
                kafka.delete_topic(case.topic)
            _say(table(section, found) + "\n")
            if keep:
                results.keep(found)


def _measure(bench: Bench, case: Case, rounds: int) -> Result:
    """The costs of each side, the sides in turns; the first round only warms up."""
    size_bytes = fill(bench.kafka, case)
    costs: dict[str, list[Cost]] = {}
    sides = bench.sides(case)
    for number in range(rounds + 1):
        for side in _SIDES[case.section]:
            for name, cost in sides[side]().items():
                _say(f"  {case.topic} ×{case.writers} {number or 'warm-up'}: {name} {cost.cpu_s:.2f} CPU-s")
                if number:
                    costs.setdefault(name, []).append(cost)
    return Result(
        case.section,
        case.kind.name,
        case.messages,
        size_bytes,
        case.partitions,
        case.writers,
        case.bad_percent,
        costs,
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    app()
