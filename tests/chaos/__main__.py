"""``python -m tests.chaos``: minutes of faults, then a check of every record.

Exit code 0 when every record is where it should be, once; 1 when not, with the seed, the timeline and the folder kept;
130 after Ctrl+C. No process is left behind in any case.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from devservices import processes
from devservices.s3 import S3Kind, ensure_program
from tests.chaos import reported
from tests.chaos.history import history_faults
from tests.chaos.plan import Kind, plan
from tests.chaos.producer import record_of
from tests.chaos.services import bugs, counted
from tests.chaos.stateful import TOPIC, State
from tests.chaos.world import APP_ID, CHANGES, World, running_world
from tests.verifier import Sent, read_kafka

_CAUGHT_UP_WITHIN_S = 1800
_END_WITHIN_S = 120
_PROTOCOLS = ("classic", "consumer")
_STATES = tuple(State)


def main(
    *,
    minutes: Annotated[float, typer.Option(help="How long things go wrong.")] = 5,
    store: Annotated[str, typer.Option(help="versitygw or minio.")] = "versitygw",
    seed: Annotated[int | None, typer.Option(help="The plan's; a new one by default.")] = None,
    rate: Annotated[float, typer.Option(help="Records a second.")] = 200,
    protocol: Annotated[str | None, typer.Option(help="The group's: classic or consumer; by the seed.")] = None,
    state: Annotated[State | None, typer.Option(help="What is done with the records; by the seed.")] = None,
    keep: Annotated[bool, typer.Option(help="Keep the folder also when all is well.")] = False,
) -> None:
    """Run, and print the result."""
    if store not in get_args(S3Kind) or store == "moto":
        msg = f"{store!r} keeps nothing when it is killed: say versitygw or minio"
        raise typer.BadParameter(msg, param_hint="--store")
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    protocol = protocol or _PROTOCOLS[seed % 2]
    state = state or _STATES[seed // 2 % len(_STATES)]
    processes.end_on_sigterm()
    ensure_program(cast("S3Kind", store))
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    again = f"make chaos MINUTES={minutes:g} STORE={store} SEED={seed} STATE={state}"
    typer.echo(f"{again}   ({protocol} group, in {folder})")
    history, others = ["the run did not come to its end"], list[str]()
    try:
        with running_world(folder, cast("S3Kind", store), seed, protocol, state) as world:
            history, others = _run(world, seed, 60 * minutes, rate)
    finally:
        if history or others or keep:
            typer.echo(f"the timeline, the logs and the data are in {folder}")
        else:
            shutil.rmtree(folder)
    typer.echo("\n  ".join([f"verdict by Kafka and the tables: {len(history)} faults", *history[:30]]))
    if others:
        typer.echo("\n  ".join([f"{len(others)} faults of the services and of the run", *others[:30]]))
    if history or others:
        typer.echo(f"run it again with: {again}")
        sys.exit(1)
    typer.echo("every record once, values right, every acknowledged commit in the log")


def _run(world: World, seed: int, seconds: float, rate: float) -> tuple[list[str], list[str]]:
    """The faults of the history (tests/chaos/history.py), and other problems; any of them fails the run."""
    began_s = time.monotonic()
    world.start_all(seed, rate)
    world.warm_up()
    for fault in plan(seed, seconds):
        world.run_until(fault.at_s)
        world.inflict(fault)
    world.run_until(seconds)
    world.end_faults()
    faults, sent = _catch_up(world)
    faults += _let_end(world)
    faults += reported.ledger_faults(world.ledger, sent, partial(record_of(world.state), seed))
    world.log("the verifier reads")
    has_state, has_events = world.state.is_kept, world.state is State.EVENTS
    history = history_faults(
        sent, world.table, has_state=has_state, has_events=has_events, server=world.s3, folder=world.folder
    )
    loaders = world.services.named("loader")
    acknowledged, missing = reported.commit_faults(world.tables, world.s3, loaders)
    faults += missing + bugs([*loaders, *world.services.named("writer"), *world.services.named("producer")])
    if world.state is State.TOPIC:
        messages = len(read_kafka(world.kafka.bootstrap_servers, CHANGES))
        world.log(f"the changelog topic has {messages} messages")
        faults += [] if messages else ["no state was ever in the changelog topic"]
    _report(world, sent, acknowledged)
    typer.echo(f"{time.monotonic() - began_s:.0f} s in all")
    return history, faults


def _catch_up(world: World) -> tuple[list[str], list[Sent]]:
    """End the producer, and wait until its last records are in the table."""
    [producer] = world.services.named("producer")
    producer.terminate()
    faults = [] if world.wait_until(lambda: not producer.is_running, _END_WITHIN_S) else ["the producer does not end"]
    sent = read_kafka(world.kafka.bootstrap_servers, TOPIC)
    world.log(f"Kafka has {len(sent)} records")
    last = reported.last_offsets(sent)
    lag: dict[int, int] = last

    def is_caught_up() -> bool:
        nonlocal lag
        lag = reported.behind(world.table, APP_ID, world.s3, last)
        return not lag

    if not world.wait_until(is_caught_up, _CAUGHT_UP_WITHIN_S):
        faults.append(f"after {_CAUGHT_UP_WITHIN_S} s without a fault the table is behind by partition: {lag}")
    world.log("all is loaded")
    return faults, sent


def _let_end(world: World) -> list[str]:
    """All services end on SIGTERM, with 0."""
    asked = [service for service in world.services.all if service.is_running]
    before = sum(len(service.ends) for service in asked)
    for service in asked:
        service.wanted = False
        service.terminate()
    world.wait_until(lambda: not any(service.is_running for service in asked), _END_WITHIN_S)
    world.services.supervise()
    faults = [f"{service.name} does not end on SIGTERM" for service in asked if service.is_running]
    ends = [end for service in asked for end in service.ends]
    return faults + (ends[before:] if len(ends) > before else [])


def _report(world: World, sent: list[Sent], acknowledged: dict[str, int]) -> None:
    lines = [f"{len(sent)} records, of them {sum(record.value is None for record in sent)} tombstones"]
    lines += ["", "faults"]
    lines += [f"  {world.done[kind]:>5}  {kind}{_skipped(world, kind)}" for kind in Kind]
    lines += [f"  {count:>5}  {what}" for what, count in sorted(world.request_faults.done.items())]
    writers, loaders = (counted(world.services.named(name)) for name in ("writer", "loader"))
    lines += ["", "what the services say"]
    for name, counts in (("writers", writers), ("loaders", loaders)):
        lines += [f"  {count:>5}  {name}: {event}" for event, count in counts.most_common()]
    lines += [f"  {reported.strays(world.stage, world.s3):>5}  markers in stray/"]
    lines += [f"  {count:>5}  acknowledged commits of {name}" for name, count in sorted(acknowledged.items())]
    log = reported.commits_of(world.table, world.s3)
    lines += [f"  {Counter(log.values())[None]:>5}  commits of others, the table's first among them"]
    ends = [end for service in world.services.all for end in service.ends]
    if ends:
        lines += ["", "unrequested ends", *(f"  {end}" for end in ends)]
    (world.folder / "report.txt").write_text("\n".join(lines), "utf-8")
    typer.echo("\n".join(lines))


def _skipped(world: World, kind: Kind) -> str:
    count = world.skipped[kind]
    return f" (and {count} times without a process)" if count else ""


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(main)
if __name__ == "__main__":
    app()
