"""From `topology: package.module:build` to a checked topology.

Rules:

1. An error in the user's code is reported with its file and line, without this program's stack.
2. The module is found by Python's rules, and in the current folder. A package with the same name as one of this
   program's is reported, or used in its place (`own_packages`).
3. The topology's topics and its sinks' tables are checked against the stream before anything is read.
"""

import difflib
import importlib
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType

from common.errors import ConfigError, KafkaDeltaExpressError
from common.remedies import CONFIG
from common.settings import Stream
from stage_writer.tasks.own_packages import own_name, shadowed_by, use_packages
from stage_writer.tasks.tables import declared_of
from stage_writer.topologies.built import BuiltTopology, check_tables
from stage_writer.topologies.topology import Topology


def topology_of(stream: Stream) -> BuiltTopology:
    """The stream's topology. Raises ConfigError, or its subclasses SchemaError and ExpressionError."""
    name = stream.topology
    if name is None:
        raise TypeError(f"the stream {stream.app_id!r} has no topology")
    module, _, function = name.partition(":")
    made = _called(name, _function(_module(name, module, stream.topology_packages), name, function))
    build = getattr(made, "build", None)  # returned by a StreamsBuilder
    made = build() if not isinstance(made, Topology) and callable(build) else made
    if not isinstance(made, Topology):
        problem = f"topology {name!r} returns {_article(type(made).__name__)}"
        raise ConfigError(problem, "return the Topology, or the StreamsBuilder")
    try:
        topology = made.check()
    except ConfigError as error:
        raise type(error)(f"topology {name!r}: {error.problem}", error.remedy) from error
    _check_topics(name, stream, topology)
    _check_tables(name, stream, topology)
    return topology


def _module(name: str, module: str, packages: Collection[str]) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        use_packages(packages)
        return importlib.import_module(own_name(module))
    except ImportError as error:
        shadowed = shadowed_by(error)
        if shadowed is not None:
            raise ConfigError(f"topology {name!r}: {shadowed.problem}", shadowed.remedy) from None
        if not isinstance(error, ModuleNotFoundError):
            raise _failed(f"the module of topology {name!r} cannot be imported", error) from None
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            problem = f"topology names the module {module!r}, but there is no module {error.name!r}"
            remedy = f"install its package, or start the writer in the folder that contains it (this is {here})"
            raise ConfigError(problem, remedy) from None
        raise _failed(f"the module of topology {name!r} cannot be imported", error) from None
    except KafkaDeltaExpressError as error:
        raise ConfigError(f"topology {name!r}: {error.problem}", error.remedy) from error
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        raise _failed(f"the module of topology {name!r} cannot be imported", error) from None


def _function(module: ModuleType, name: str, function: str) -> Callable[[], object]:
    value = getattr(module, function, None)
    if value is None:
        close_matches = difflib.get_close_matches(function, dir(module), n=1)
        problem = f"topology is {name!r}, but {module.__name__} has no {function!r}"
        raise ConfigError(
            problem, f"did you mean {close_matches[0]!r}?" if close_matches else f"define it in {module.__file__}"
        )
    if not callable(value):
        problem = f"topology is {name!r}, which is {_article(type(value).__name__)}, not a function"
        raise ConfigError(problem, "name a function that builds the topology")
    return value  # type: ignore[no-any-return]


def _called(name: str, function: Callable[[], object]) -> object:
    try:
        return function()
    except KafkaDeltaExpressError as error:
        raise type(error)(f"topology {name!r}: {error.problem}", error.remedy) from error
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        raise _failed(f"topology {name!r} cannot be built", error) from None


def _check_topics(name: str, stream: Stream, topology: BuiltTopology) -> None:
    for topic in topology.sources:
        if topic not in stream.topics:
            problem = f"topology {name!r} has a source for the topic {topic!r}, which the stream does not read"
            raise ConfigError(problem, f"add it to topics of {stream.app_id!r}, or fix the source")
    for topic in stream.topics:
        if topic not in topology.sources:
            problem = f"the stream reads the topic {topic!r}, but topology {name!r} has no source for it"
            raise ConfigError(problem, "add a source, or remove the topic from topics")


def _check_tables(name: str, stream: Stream, topology: BuiltTopology) -> None:
    for table in topology.tables:
        if table and table not in stream.routing.routes:
            problem = f"topology {name!r} has a sink for the table {table!r}, which is not in the stream's routes"
            close_matches = difflib.get_close_matches(table, stream.routing.routes, n=1)
            remedy = f"did you mean {close_matches[0]!r}?" if close_matches else f"write routes: {{{table}: table URL}}"
            raise ConfigError(problem, remedy)
    try:
        check_tables(topology, declared_of(stream))
    except ConfigError as error:
        raise type(error)(f"topology {name!r}: {error.problem}", error.remedy) from error


def _failed(what: str, error: Exception) -> ConfigError:
    if isinstance(error, SyntaxError):
        location = f"{error.filename}, line {error.lineno}"
    else:
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")
        ]
        location = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "nowhere"
    return ConfigError(
        f"{what}: {type(error).__name__}: {error} ({location})", f"fix it, and run `stage-writer check {CONFIG}`"
    )


def _article(name: str) -> str:
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"
