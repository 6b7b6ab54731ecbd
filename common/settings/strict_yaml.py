"""Strict YAML: text that could be read in two ways is refused.

Rules:

1. A key given twice in a map is refused. A key that a map takes over from another one (``<<: *name``) may be given
   again, which overrides it.
2. ``15:00`` is text. YAML 1.1 reads it as a number in base 60, so ``schedule: 15:00`` would load every 900 seconds.
3. A number that begins with a zero is refused. YAML 1.1 reads ``0120`` as 80, and most readers since do not.
4. A date that does not exist and a number that is too long are refused like any other invalid YAML, with their place.
5. Aliases (``*name``) may repeat values, also through other aliases, up to a limit: without one, a short text could
   expand until memory runs out.
6. Errors give the place of the problem and never quote the line: it may hold a password.
"""

import re
from typing import Any

import yaml

_QUOTES_A_VALUE = re.compile(r"\b(alias|anchor|tag|tag handle) '")
_SECOND_DOCUMENT = "but found another document"  # PyYAML's words
_OCTAL = re.compile("[-+]?0[0-7_]+")
_MOST_REPEATED = 100_000
_MERGE, _INT, _FLOAT = (f"tag:yaml.org,2002:{kind}" for kind in ("merge", "int", "float"))


def load_yaml(text: str) -> object:
    """The content of a text. Raises yaml.YAMLError, and RecursionError if it is nested too deeply."""
    return yaml.load(text, _StrictLoader)  # noqa: S506 - a subclass of SafeLoader


def yaml_problem(error: yaml.YAMLError) -> str:
    """The problem and its place (rule 6)."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return "it holds a character that YAML does not allow"
    mark = error.problem_mark
    problem = error.problem or "it cannot be read"
    if problem == _SECOND_DOCUMENT:
        return f"a second document begins at line {mark.line + 1}"
    if not isinstance(error, _RefusedError) and _QUOTES_A_VALUE.search(problem):
        problem = problem.partition("'")[0].rstrip()
    return f"{problem} at line {mark.line + 1}, column {mark.column + 1}"


def yaml_remedy(error: yaml.YAMLError) -> str:
    if isinstance(error, _RefusedError):
        return "fix that line"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem == _SECOND_DOCUMENT:
        return "give each document (between lines of ---) a file of its own"
    return (
        "fix that line, or the one before it: lines of one section need the same indentation in spaces, not tabs, "
        "and values with special characters need quotes"
    )


class _RefusedError(yaml.constructor.ConstructorError):
    """A refusal by these rules, with the reason for the line."""


class _StrictLoader(yaml.SafeLoader):
    def get_single_node(self) -> yaml.Node | None:
        """The content before aliases are resolved (rule 5)."""
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _count(node, {})
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Checks the map as written, before construction merges the keys of ``<<``."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: dict[object, str] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE or not isinstance(key_node, yaml.ScalarNode):
                continue
            key = self.construct_object(key_node)
            if key in seen and seen[key] != key_node.value:  # Python's True is 1
                msg = f"the keys {seen[key]} and {key_node.value} are the same without quotes; put them in quotes,"
                raise _RefusedError(None, None, msg, key_node.start_mark)
            if key in seen:
                raise _RefusedError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
            seen[key] = key_node.value
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:  # noqa: FBT001, FBT002 - PyYAML's own
        try:
            constructed: object = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, OverflowError):
            problem = "a date or a number is given that does not exist; fix it, or put text in quotes,"
            raise _RefusedError(None, None, problem, node.start_mark) from None
        return constructed

    def construct_number(self, node: yaml.ScalarNode) -> int | float | str:
        """A number, or the text itself if it has a colon (rules 2 and 3)."""
        if ":" in node.value:
            return str(node.value)
        if _OCTAL.fullmatch(node.value):
            problem = "a number begins with 0, which YAML reads as octal; leave the 0 out, or put text in quotes,"
            raise _RefusedError(None, None, problem, node.start_mark)
        construct = self.construct_yaml_int if node.tag == _INT else self.construct_yaml_float
        number: int | float = construct(node)
        return number


def _count(node: yaml.Node, counted: dict[int, int]) -> int:
    """How many values a part has with its aliases written out; ``counted`` are those of others, by their identities."""
    known = counted.get(id(node))
    if known is not None:
        return known
    inner: list[yaml.Node] = []
    if isinstance(node, yaml.CollectionNode):
        inner = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
    count = 1 + sum(_count(part, counted) for part in inner)
    counted[id(node)] = count
    if count > len(counted) + _MOST_REPEATED:
        problem = f"aliases (*name) repeat more than {_MOST_REPEATED:,} values in the part that begins"
        raise _RefusedError(None, None, problem, node.start_mark)
    return count


for _tag in (_INT, _FLOAT):
    _StrictLoader.add_constructor(_tag, _StrictLoader.construct_number)
