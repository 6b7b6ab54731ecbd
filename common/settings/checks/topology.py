"""`topology` of a stream: rows are made by a user's function, instead of by settings.

Rules:

1. With it, ``columns`` are the table's: the sources of the topology declare their topics' fields. So settings that read
   or change a record's own fields are refused, with what to write instead.
2. Only writers import the user's module. The other programs use the settings, which is why tables are named here.
"""

import re
from collections.abc import Iterator

from common.settings.section import refuse
from common.settings.stream import Stream

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

PACKAGES_OF_THIS_PROGRAM = ("bootstrap", "common", "delta_loader", "stage_writer")


def check_topology(stream: Stream) -> None:
    if stream.topology is None:
        if stream.max_task_idle_s:
            refuse("max_task_idle only applies to a topology that joins topics; remove it, or set topology")
        if stream.state_changelog is not None:
            refuse("state_changelog only applies to the state of a topology; remove it, or set topology")
        if stream.topology_packages:
            refuse("topology_packages only applies to what a topology imports; remove it, or set topology")
        return
    unknown = next((name for name in stream.topology_packages if name not in PACKAGES_OF_THIS_PROGRAM[:-1]), None)
    if unknown is not None:
        refuse(
            f"topology_packages names {unknown!r}, which needs no entry; name packages of yours that are called "
            f"{', '.join(PACKAGES_OF_THIS_PROGRAM[:-1])}, as parts of this program are"
        )
    if not _FUNCTION.fullmatch(stream.topology):
        refuse(
            f"topology is {stream.topology!r}, which is not a function's name; write package.module:build, as in "
            "a Python import"
        )
    if stream.pattern is not None:
        refuse(f"topology needs the names of its topics, and topics is {stream.topics[0]!r}; name each topic")
    for key, instead in _excluded(stream):
        refuse(f"topology makes the rows, so {key} cannot be set; remove {key}, and {instead}")


def _excluded(stream: Stream) -> Iterator[tuple[str, str]]:
    """A setting that is excluded by rule 1, with what to write instead."""
    step = "add a step to the topology, such as"
    columns = "declare the record in the columns of the topology's source"
    given = {
        "where": (stream.shaping.where is not None, f"{step} Where"),
        "derive": (bool(stream.shaping.derive), f"{step} Derive"),
        "expect": (bool(stream.shaping.expect), "let a processor check the record"),
        "explode": (stream.shaping.explode is not None, "let a processor forward several records (flat_map)"),
        "drop": (bool(stream.shaping.drop), f"{step} Select"),
        "rename": (bool(stream.shaping.rename), f"{step} Select"),
        "field_names": (stream.shaping.field_names != "as_is", f"{step} Select"),
        "jmespath": (bool(stream.record.jmespath), "let a processor read it from the record"),
        "formats": (bool(stream.record.formats), columns),
        "unknown_fields": (stream.record.rescues, f"{columns}, or remove these to have the whole JSON"),
        "envelope": (stream.record.has_events, "let a processor read the event"),
        "format": (stream.record.format != "json", "give this topic a stream of its own"),
        "validate": (stream.record.validates, "let a processor check the record"),
        "framing": (stream.record.framing != "none", "give this topic a stream of its own"),
        "include: [headers]": (
            "headers" in stream.include,
            "read them with headers=True in the topology's source, into a column of your own",
        ),
        "merge": (stream.merge is not None, "let the topology give one row for each change"),
        "route": (stream.routing.route is not None, "name the route in add_sink(table=…)"),
        "unrouted": (stream.routing.unrouted != "table", "name a route in every add_sink(table=…)"),
    }
    return ((key, instead) for key, (is_given, instead) in given.items() if is_given)
