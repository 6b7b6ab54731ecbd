"""How a remedy names the config file: a placeholder where the remedy is made, the real path where it is shown.

Rules:

1. Code that makes a remedy writes ``CONFIG`` where the command has the path: ``f"bootstrap skip {CONFIG} --to {to}"``.
   So decisions stay pure, and a remedy that is stored in the stage names the reader's own file, not the writer's.
2. Output of the process goes through `rendered`: the commands' output (`common.cli.echo` and `common.cli.run`), the
   logs (`common.logs`) and the pages (`common.http.server`). The command line sets the file once.
3. Code that does not know a table's URL, only its protocol or properties, writes ``TABLE``; the caller that knows the
   URL fills it in: `of_table`.
4. The path is absolute and quoted for a POSIX shell, so that a command can be copied from a page or a log. Values that
   a user chose freely, such as an app_id or a URL, are quoted where they are written: `quoted`.
"""

import json
import shlex
from pathlib import Path

from common.spans import TopicPartition

CONFIG = "⟨config⟩"
_IN_JSON = json.dumps(CONFIG)[1:-1]

TABLE = "⟨table⟩"

MOST_COMMANDS = 3
"""How many commands of the same kind a remedy spells out."""

quoted = shlex.quote


class _Shown:
    """The config file of this process, for `rendered` alone."""

    path: Path | None = None


def show_config(path: Path | None) -> None:
    """Set the file that the placeholder stands for; None to clear it."""
    _Shown.path = path


def rendered(text: str) -> str:
    """``text`` with the config's path, in plain text as well as in JSON; unchanged while no path is known."""
    if _Shown.path is None:
        return text
    path = quoted(str(_Shown.path.absolute()))
    return text.replace(CONFIG, path).replace(_IN_JSON, json.dumps(path)[1:-1])


def delta_table(url: str) -> str:
    """The name of a Delta table in a SQL statement, by its URL."""
    return f"delta.`{url}`"


def of_table(remedy: str, url: str) -> str:
    """``remedy`` with the table's name in its statements."""
    return remedy.replace(TABLE, delta_table(url))


def of_chain(remedy: str, partition: TopicPartition, chain: TopicPartition) -> str:
    """A remedy for a Kafka partition, with commands that name one of the chains that read it."""
    return remedy.replace(_partition(partition), _partition(chain))


def repair(verb: str, partition: TopicPartition, to: int | None = None, *flags: str) -> str:
    """A command of ``bootstrap`` for one Kafka partition: ``rewind`` or ``skip`` to a position, or ``restart``."""
    words = [f"bootstrap {verb} {CONFIG} {_partition(partition)}"]
    return " ".join([*words, *([] if to is None else [f"--to {to}"]), *flags])


def new_chain(partition: TopicPartition) -> str:
    """The remedy for a chain whose topic has a new id: it was recreated, or the settings name another cluster."""
    return (
        f"load what is staged, and start a new chain with `bootstrap restart {CONFIG} --topic {partition.topic} --yes`;"
        " but if kafka.bootstrap.servers names another cluster by mistake, only correct that"
    )


def new_chain_where_different(partition: TopicPartition, or_else: int | None) -> str:
    """The remedy for a chain whose last records Kafka lost.

    Starting earlier loads records twice, starting later loses new ones. ``or_else`` is the offset where the rows of the
    table show no difference.
    """
    otherwise = "" if or_else is None else f"; if it names none, it is {or_else}"
    return (
        f"load what is staged (`delta-loader run {CONFIG} --once`), find the first offset at which Kafka has other "
        f"records than the table (`delta-loader verify {CONFIG} --kafka` names it{otherwise}), and start a new chain "
        f"there: `{repair('restart', partition, None, '--at OFFSET --yes')}`"
    )


def replay(partition: TopicPartition, start: int, end: int | None) -> str:
    """The command that replays the rows of ``[start, end)``; without ``end`` the user has to fill it in."""
    words = f"stage-writer replay {CONFIG} {_partition(partition)} --from {start}"
    return f"{words} --to {'OFFSET' if end is None else end} --yes"


def _partition(partition: TopicPartition) -> str:
    return f"--topic {partition.topic} --partition {partition.partition}"
