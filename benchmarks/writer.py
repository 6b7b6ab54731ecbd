"""The cost of a message from Kafka to the table: ``python -m benchmarks.writer`` (`make benchmark`).

All sides read the same topic in turn, on one machine in one run (`benchmarks.sides`). Each case runs once to warm up,
then ``--rounds`` times; the median counts. Cases that are compared with each other also alternate. The printed cost is
the CPU time of all threads: two cores provide two CPU seconds per second. The ratios apply to other machines, the
absolute figures do not. ``--keep`` stores them in ``benchmarks/results.json``, from which `benchmarks.report` makes the
page and its charts.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import results, spark
from benchmarks.cases import SECTIONS, Case, cases, fill
from benchmarks.choices import require_known
from benchmarks.measure import Cost
from benchmarks.report import table
from benchmarks.results import Result
from benchmarks.sides import CONSUME, FROM_START, OURS, PIPELINE, SPARK, WITHOUT_C, WRITING, Bench
from devservices.kafka import KafkaOptions, running_kafka

_SIDES = {
    "kinds": (CONSUME, PIPELINE, OURS, FROM_START, WITHOUT_C, SPARK),
    "avro": (OURS, WITHOUT_C, SPARK),
    "envelopes": (WRITING,),
    "partitions": (PIPELINE, OURS, SPARK),
    "bad": (OURS,),
    "writers": (OURS,),
}

_IN_TURNS = ("envelopes",)
"""Sections whose cases also alternate."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    sections: Annotated[list[str] | None, typer.Argument(help=f"{', '.join(SECTIONS)}; all when absent")] = None,
    scale: Annotated[float, typer.Option(help="Factor for the number of messages.")] = 1.0,
    rounds: Annotated[int, typer.Option(help="Number of measured rounds.")] = 3,
    keep: Annotated[bool, typer.Option("--keep", help="Store the figures for the performance page.")] = False,  # noqa: FBT002
) -> None:
    """Measure each section and print the figures."""
    require_known(sections, SECTIONS)
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(KafkaOptions(properties={"log.segment.bytes": "1073741824"})))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        session = spark.start(kafka.bootstrap_servers, folder)
        stack.callback(session.stop)
        bench = Bench(kafka, session, folder)
        stack.callback(bench.close)
        for section in sections or SECTIONS:
            section_cases = list(cases(section, scale))
            in_turns = [section_cases] if section in _IN_TURNS else [[case] for case in section_cases]
            found = [result for turns in in_turns for result in _measure(bench, turns, rounds)]
            _say(table(section, found) + "\n")
            if keep:
                results.keep(found)


def _measure(bench: Bench, turns: list[Case], rounds: int) -> list[Result]:
    """Each side's costs for each case, measured alternately; the first round only warms up."""
    sizes = [fill(bench.kafka, case) for case in turns]
    costs: list[dict[str, list[Cost]]] = [{} for _ in turns]
    for number in range(rounds + 1):
        for case, costs_of_case in zip(turns, costs, strict=True):
            sides = bench.sides(case)
            for side in _SIDES[case.section]:
                for name, cost in sides[side]().items():
                    _say(f"  {case.topic} ×{case.writers} {number or 'warm-up'}: {name} {cost.cpu_s:.2f} CPU-s")
                    if number:
                        costs_of_case.setdefault(name, []).append(cost)
    for case in turns:
        bench.kafka.delete_topic(case.topic)
    return [
        Result(
            case.section,
            case.kind.name,
            case.messages,
            size_bytes,
            case.partitions,
            case.writers,
            case.bad_percent,
            costs_of_case,
        )
        for case, size_bytes, costs_of_case in zip(turns, sizes, costs, strict=True)
    ]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    app()
