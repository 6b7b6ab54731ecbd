"""A topology's description, and the mistakes that are refused when it is built."""

from collections.abc import Callable

import pytest

from common.errors import ConfigError
from stage_writer.topologies import Derive, Processor, Topology, Where
from stage_writer.topologies.stores import Stores

COLUMNS = "page STRING, status INT, at TIMESTAMP"


def clicks() -> Topology:
    return Topology().add_source("clicks", "clicks", columns=COLUMNS)


def with_store(name: str) -> Topology:
    return clicks().add_processor("p", Processor, "clicks").add_state_store(Stores.key_value(name), "p")


def test_topology_describes_its_tasks() -> None:
    topology = clicks().add_source("users", "users", columns="name STRING")
    topology.add_step("errors", Where("status >= 400"), "clicks")
    topology.add_processor("join", Processor, "errors", "users", stores=["names"])
    topology.add_state_store(Stores.key_value("names")).add_sink("rows", "join")
    assert topology.describe().splitlines() == [
        "Sub-topology 0: a task for each partition of clicks and users",
        "  source clicks (topics: clicks) → errors",
        "  source users (topics: users) → join",
        "  step errors (on columns) → join",
        "  processor join (stores: names) → rows",
        "  sink rows (table: main)",
        "  store names (of join)",
    ]


def test_topics_share_a_task_only_if_they_share_state() -> None:
    topology = Topology().add_source("a", "a", "b", columns="x INT").add_source("c", "c", columns="x INT")
    topology.add_processor("one", Processor, "a").add_processor("two", Processor, "c").add_sink("rows", "one", "two")
    assert [group.name for group in topology.check().groups] == ["a", "b", "c"]
    topology.add_state_store(Stores.key_value("seen"), "one", "two")
    assert [group.name for group in topology.check().groups] == ["a+b+c"]
    assert topology.check().group_of("b").topics == ("a", "b", "c")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Topology().check(), "no source"),
        (lambda: Topology().add_source("a"), "'a' has no topics"),
        (lambda: clicks().add_source("again", "clicks"), "'clicks' and 'again' both read clicks"),
        (lambda: clicks().add_sink("clicks", "clicks"), "two nodes are named 'clicks'"),
        (lambda: clicks().add_sink("rows", "click"), "the parent 'click'"),
        (lambda: clicks().add_sink("rows"), "'rows' has no parents"),
        (lambda: clicks().add_sink("rows", "clicks").add_sink("more", "rows"), "the sink 'rows' as a parent"),
        (lambda: clicks().check(), "no node receives the records of 'clicks'"),
        (lambda: Topology().add_source("a", "a", columns="x INTEGR"), "the source 'a'"),
        (lambda: Topology().add_source("a", "a", key="TEXT"), "the key of 'a' is 'TEXT'"),
        (lambda: Topology().add_source("a", "a", columns=COLUMNS, timestamp="when").check(), "'when'"),
        (lambda: Topology().add_source("a", "a", columns=COLUMNS, timestamp="page").check(), "'page'"),
        (lambda: with_store("__task"), "reserved"),
        (lambda: clicks().add_processor("p", Processor, "clicks", stores=["s"]).check(), "the state store 's'"),
        (
            lambda: with_store("s").add_state_store(Stores.key_value("t")).check(),
            "no processor uses the state store 't'",
        ),
        (lambda: with_store("s").add_state_store(Stores.key_value("s")), "'s' is added twice"),
        (lambda: clicks().add_state_store(Stores.key_value("s"), "clicks").check(), "which is not a processor"),
        (lambda: clicks().add_step("w", Where("stauts > 1"), "clicks").add_sink("rows", "w").check(), "the step 'w'"),
        (lambda: Topology(late="keep"), "late is 'keep'"),
    ],
)
def test_invalid_topology_is_refused_by_name(make: Callable[[], Topology], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert named in caught.value.problem
    assert caught.value.remedy


def test_step_between_processors_is_refused() -> None:
    topology = clicks().add_processor("one", Processor, "clicks")
    topology.add_step("between", Derive({"x": "1"}), "one", columns="status INT")
    topology.add_processor("two", Processor, "between").add_sink("rows", "two")
    with pytest.raises(ConfigError, match="out of order"):
        topology.check()


def test_step_after_a_processor_needs_columns() -> None:
    topology = clicks().add_processor("one", Processor, "clicks").add_step("after", Derive({"x": "1"}), "one")
    with pytest.raises(ConfigError, match="its columns are unknown"):
        topology.add_sink("rows", "after").check()
