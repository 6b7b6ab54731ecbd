"""From a YAML file to `Settings`, or to one error that names the file, the key, the value and the remedy.

Rules:

1. ``${NAME}`` is replaced by an environment variable and ``${file:PATH}`` by a file's text (one closing line break
   taken off), inside of values and after YAML was read, so that a secret's characters mean nothing to YAML. ``$${``
   stands for ``${``.
2. A value that came from a file, and any value under a key that sounds secret, is never shown: not in
   ``--print-config`` and not in an error.
3. Unknown keys are refused with the nearest known one; so are keys given twice.
"""

from __future__ import annotations

import difflib
import inspect
import re
import typing
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import BaseModel, ValidationError

from common.errors import ConfigError
from common.settings.model import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

MASK = "********"
_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<file>file:)?(?P<name>[^}]*)\}")
_SECRET_KEY = re.compile(
    r"passw|passphrase|secret|token|credential|private|jaas|account[._]?key|access[._]?key|api[._]?key|key[._]pem|^key$",
    re.IGNORECASE,
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):([^/@\s]+)@")
_EXPECTED = {
    "int_parsing": "is not a whole number",
    "int_type": "is not a whole number",
    "bool_parsing": "is neither true nor false",
    "bool_type": "is neither true nor false",
    "string_type": "is not text",
    "dict_type": "is not a map of keys and values",
    "model_type": "is not a map of keys and values",
    "tuple_type": "is not a list",
    "list_type": "is not a list",
    "greater_than": "is too small",
    "greater_than_equal": "is too small",
    "less_than_equal": "is too large",
    "too_short": "is empty",
    "string_too_short": "is empty",
}


def load_settings(path: Path | str, environ: Mapping[str, str]) -> Settings:
    """Read, substitute and validate. Raises ConfigError."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        msg = f"the config file {path} cannot be read: {error.strerror}"
        raise ConfigError(msg, "give the path of a YAML file; README.md has one to begin with") from None
    except UnicodeDecodeError:
        msg = f"the config file {path} is not UTF-8 text"
        raise ConfigError(msg, "save it as UTF-8") from None
    return parse_settings(text, environ, str(path))


def parse_settings(text: str, environ: Mapping[str, str], source: str) -> Settings:
    """The same for text; ``source`` names it in errors."""
    try:
        raw = yaml.load(text, _StrictLoader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.YAMLError as error:
        msg = f"{source} is not YAML: {' '.join(str(error).split())}"
        raise ConfigError(msg, "mend the line that it names") from None
    if not isinstance(raw, dict):
        msg = f"{source} holds no settings"
        raise ConfigError(msg, "write the sections kafka, stage and streams; README.md has an example")
    secrets: set[str] = set()
    filled = _substitute(raw, (), environ, source, secrets)
    try:
        return Settings.model_validate(filled)
    except ValidationError as error:
        raise _readable(error, source, secrets) from None


def print_settings(settings: Settings) -> str:
    """The settings in force, defaults included, as YAML with secrets masked."""
    values = settings.model_dump(mode="json", by_alias=True)
    return yaml.safe_dump(_masked(values, ()), sort_keys=False, allow_unicode=True, width=120)


def mask(key: str, value: object) -> object:
    """The value as it may be shown under its key."""
    if value not in (None, "") and _SECRET_KEY.search(key):
        return MASK
    if isinstance(value, str):
        return _URL_PASSWORD.sub(rf"\1:{MASK}@", value)
    return value


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:  # noqa: FBT001, FBT002 - PyYAML's signature
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, typing.Hashable) and key in seen:
                context = f"the key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(context, key_node.start_mark)
            if isinstance(key, typing.Hashable):
                seen.add(key)
        mapping: dict[object, object] = super().construct_mapping(node, deep)
        return mapping


def _substitute(
    value: object, place: tuple[object, ...], environ: Mapping[str, str], source: str, secrets: set[str]
) -> object:
    if isinstance(value, dict):
        return {key: _substitute(found, (*place, key), environ, source, secrets) for key, found in value.items()}
    if isinstance(value, list):
        return [_substitute(found, (*place, index), environ, source, secrets) for index, found in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if match["name"] is None:
            return "${"
        if match["file"]:
            return _from_file(match["name"])
        if match["name"] not in environ:
            msg = f"{source}: {_dotted(place)}: the environment variable {match['name']} is not set"
            raise ConfigError(msg, f"export {match['name']}, or write $${{…}} where no variable is meant")
        return environ[match["name"]]

    def _from_file(name: str) -> str:
        try:
            text = Path(name).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            msg = f"{source}: {_dotted(place)}: the file {name} cannot be read: {reason}"
            raise ConfigError(msg, "mend the path in ${file:…}, or the file's permissions") from None
        secrets.add(text)
        return text

    return _REFERENCE.sub(replace, value)


def _readable(error: ValidationError, source: str, secrets: set[str]) -> ConfigError:
    details = error.errors(include_url=False)
    # A list whose items were refused is also reported as too short, which nobody needs to hear.
    inner = [detail["loc"] for detail in details if detail["type"] != "too_short"]
    echoes = [
        d for d in details if d["type"] == "too_short" and any(place[: len(d["loc"])] == d["loc"] for place in inner)
    ]
    problems = [_sentence(detail, secrets) for detail in details if detail not in echoes]
    head = problems[0] if len(problems) == 1 else "\n  ".join([f"{len(problems)} settings are wrong:", *problems])
    return ConfigError(f"{source}: {head}", "every key is described in docs/configuration.md")


def _sentence(detail: ErrorDetails, secrets: set[str]) -> str:
    # Pydantic puts the names of union members and "[key]" into places; a user knows only keys and list indexes.
    place = tuple(part for part in detail["loc"] if part == "[key]" or not _is_type_name(str(part)))
    kind = detail["type"]
    if kind == "extra_forbidden":
        return _unknown_key(place)
    if kind == "missing":
        return f"{_dotted(place)} is missing; it has no default"
    shown = _shown(place, detail["input"], secrets)
    if kind == "value_error":
        reason = str(detail["ctx"]["error"]) if "ctx" in detail else detail["msg"]
        return f"{_dotted(place)}: {shown} {reason}" if place and shown else f"{_dotted(place)} {reason}".strip()
    reason = _EXPECTED.get(kind) or f"is refused: {detail['msg'][0].lower()}{detail['msg'][1:]}"
    return f"{_dotted(place)}: {shown or 'the value'} {reason}"


def _is_type_name(part: str) -> bool:
    return part in {"str", "int", "float", "bool", "none", "nullable"} or part.startswith(("function-", "dict["))


def _shown(place: tuple[int | str, ...], value: object, secrets: set[str]) -> str:
    if isinstance(value, (dict, list, tuple, BaseModel)):
        return ""
    if any(_SECRET_KEY.search(str(part)) for part in place) or str(value) in secrets:
        return MASK
    return repr(mask("", value))


def _unknown_key(place: tuple[int | str, ...]) -> str:
    known = _known_keys(place[:-1])
    near = difflib.get_close_matches(str(place[-1]), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
    return f"{_dotted(place)} is not a setting; {hint}"


def _known_keys(place: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in place:
        if isinstance(part, int):
            continue
        annotation = next(
            (field.annotation for name, field in model.model_fields.items() if part in (name, field.alias)), None
        )
        inner = _model_in(annotation)
        if inner is None:
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: object) -> type[BaseModel] | None:
    if inspect.isclass(annotation):
        return annotation if issubclass(annotation, BaseModel) else None
    found = (_model_in(argument) for argument in typing.get_args(annotation))
    return next((model for model in found if model is not None), None)


def _dotted(place: tuple[object, ...]) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _masked(value: object, place: tuple[str, ...]) -> object:
    if isinstance(value, dict):
        return {key: _masked(found, (*place, str(key))) for key, found in value.items()}
    if isinstance(value, list):
        return [_masked(found, place) for found in value]
    return mask(place[-1] if place else "", value)
