"""From a YAML file to `Settings`, or to one error that names the file, the key, the value and the remedy.

Rules:

1. ``${NAME}`` is replaced by an environment variable and ``${file:PATH}`` by a file's text (one closing line break
   taken off), inside values and after YAML was parsed, so that a secret's characters have no meaning in YAML. ``$${``
   stands for ``${``. An empty one in front of a slash is refused: what was to be below a folder would be below ``/``.
2. Such a value is shown as its reference, and a value under a key that sounds secret is never shown: neither in
   ``--print-config`` nor in an error (`common.settings.masking`).
3. Unknown keys are refused with the nearest known one; so are keys given twice (`common.settings.strict_yaml`).
"""

import difflib
import inspect
import json
import re
import typing
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from common.errors import ConfigError
from common.printable import one_line
from common.settings.masking import MASK, References, masked_urls, sounds_secret
from common.settings.model import Settings
from common.settings.section import fields_of, model_in, parts_of
from common.settings.stream import Stream
from common.settings.strict_yaml import load_yaml, yaml_problem, yaml_remedy

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<file>file:)?(?P<name>[^}]*)(?P<end>\}?)")
_WHOLE = "is not a whole number; write digits only, for example 1000"
_NUMBER = "is not a number; write one such as 0.5"
_EITHER = "is neither true nor false; write one of them"
_TEXT = "is not text; put it in quotes"
_MAP = "is not a map; write {{key: value}}, or one `key: value` on each line"
_LIST = "is not a list; write [one, two], or one `- item` on each line"
_WORD = "is not one of {expected}"
_EMPTY = "is empty; it needs a value"
_EXPECTED = {
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "bool_parsing": _EITHER,
    "bool_type": _EITHER,
    "string_type": _TEXT,
    "enum": _WORD,
    "literal_error": _WORD,
    "word_in_place": "is a map, and this setting takes one word: {expected}",
    "text_in_place": "is not text; write one text in its place",
    "text_for_null": "is no value; write one, or leave the key out",
    "dict_type": _MAP,
    "model_type": _MAP,
    "tuple_type": _LIST,
    "list_type": _LIST,
    "greater_than": "is too small; it must be more than {gt}",
    "greater_than_equal": "is too small; the least is {ge}",
    "less_than_equal": "is too large; the most is {le}",
    "too_short": _EMPTY,
    "string_too_short": _EMPTY,
}
_ALTERNATIVES = "is not a single value; write text, a number, true or false"
_SHOWN_CHARACTERS = 80


def load_settings(path: Path | str, environ: Mapping[str, str]) -> Settings:
    """Read, substitute and validate. Raises ConfigError."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        msg = f"the config file {path} cannot be read: {error.strerror}"
        raise ConfigError(msg, "give the path of a YAML file; README.md has one to begin with") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the config file {path} is not UTF-8 text", "save it as UTF-8") from None
    return parse_settings(text, environ, str(path))


def parse_settings(text: str, environ: Mapping[str, str], source: str) -> Settings:
    """Like `load_settings`, from a text; ``source`` names it in errors."""
    try:
        raw = load_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not YAML: {yaml_problem(error)}", yaml_remedy(error)) from None
    except RecursionError:
        raise _too_deep(source) from None
    if not isinstance(raw, dict):
        msg = f"{source} has no settings"
        raise ConfigError(msg, "write the sections kafka, stage and streams; README.md has an example")
    references = References()
    try:
        filled = _substitute(raw, (), environ, source, references)
    except RecursionError:
        raise _too_deep(source) from None
    try:
        settings = Settings.model_validate(filled, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _readable(error, source, references, filled) from None
    settings.remember(references)
    return settings


def _too_deep(source: str) -> ConfigError:
    msg = f"{source} is nested too deeply, or a part of it contains itself (&name and *name)"
    return ConfigError(msg, "write the sections kafka, stage and streams; README.md has an example")


def print_settings(settings: Settings) -> str:
    """The settings in force, defaults included, as YAML with secrets masked."""
    values = settings.model_dump(mode="json", by_alias=True)
    return yaml.safe_dump(settings.references.masked(values, ()), sort_keys=False, allow_unicode=True, width=120)


def substituted(value: str, path: tuple[object, ...], environ: Mapping[str, str]) -> object:
    """A value with its references replaced (rule 1). Raises ConfigError."""
    return _substitute(value, path, environ, "the command line", References())


def _substitute(
    value: object, path: tuple[object, ...], environ: Mapping[str, str], source: str, references: References
) -> object:
    if isinstance(value, dict):
        return {key: _substitute(item, (*path, key), environ, source, references) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, (*path, index), environ, source, references) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if match["name"] is None:
            return "${"
        _require_whole(match, f"{source}: {_dotted(path)}")
        text = _from_file(match["name"]) if match["file"] else _from_environment(match["name"])
        _require_folder(match, text, f"{source}: {_dotted(path)}")
        references.written[tuple(map(str, path))] = value
        references.texts[text] = match[0]
        return text

    def _from_environment(name: str) -> str:
        if name not in environ:
            msg = f"{source}: {_dotted(path)}: the environment variable {name} is not set"
            fix = f"export {name}" if name.isidentifier() else "write the name alone, as in ${NAME}: it has no default"
            raise ConfigError(msg, f"{fix}, or write $${{…}} for the literal text")
        return environ[name]

    def _from_file(name: str) -> str:
        try:
            text = Path(name).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            msg = f"{source}: {_dotted(path)}: the file {name} cannot be read: {reason}"
            raise ConfigError(msg, "fix the path in ${file:…}, or the file's permissions") from None
        return text

    return _REFERENCE.sub(replace, value)


def _require_whole(reference: re.Match[str], place: str) -> None:
    if reference["end"] and reference["name"]:
        return
    msg = f"{place}: a ${{ {'names nothing' if reference['end'] else 'is not closed'}"
    raise ConfigError(msg, "write ${NAME} or ${file:PATH}, or $${ for the literal text")


def _require_folder(reference: re.Match[str], text: str, place: str) -> None:
    value = reference.string
    if text or reference.start() or not value.startswith("/", reference.end()):
        return
    msg = f"{place}: {reference[0]} is empty, so {value} would be {value[reference.end() :]}"
    raise ConfigError(msg, f"give {reference[0]} a value, or write the path without it")


def _readable(error: ValidationError, source: str, references: References, filled: object) -> ConfigError:
    by_place: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        by_place.setdefault(_place(detail), []).append(detail)
    # A list whose items were refused is also reported as too short, which is redundant.
    echoes = [
        path
        for path, details in by_place.items()
        if details[0]["type"] == "too_short" and any(len(p) > len(path) and p[: len(path)] == path for p in by_place)
    ]
    problems = [
        # Several errors about one value come from its alternative types.
        _with_app_id(
            _keys(path),
            _sentence(_keys(path), details[0], references)
            if len(details) == 1
            else f"{_dotted(_keys(path))}: the value {_ALTERNATIVES}",
            filled,
        )
        for path, details in by_place.items()
        if path not in echoes
    ]
    head = problems[0] if len(problems) == 1 else "\n  ".join([f"{len(problems)} settings are wrong:", *problems])
    return ConfigError(f"{source}: {references.restored(head)}", "every key is described in docs/configuration.md")


def _with_app_id(path: tuple[int | str, ...], sentence: str, filled: object) -> str:
    """The sentence about a setting of a stream, with its app_id behind the key."""
    try:
        section, number, key = path[0], path[1], path[-1]
        app_id = filled[section][number]["app_id"]  # type: ignore[index] # what the file has there
    except (IndexError, KeyError, TypeError):
        return sentence
    dotted = _dotted(path)
    if key == "app_id" or not isinstance(app_id, str) or not sentence.startswith(dotted):
        return sentence
    return f"{dotted} ({one_line(app_id)}){sentence.removeprefix(dotted)}"


def _place(detail: ErrorDetails) -> tuple[int | str, ...]:
    # Pydantic puts the names of union members and "[key]" into locations; a user knows only keys and list indexes.
    return tuple(part for part in detail["loc"] if part == "[key]" or not _is_type_name(str(part)))


def _keys(place: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The keys that lead to a value in the file, which has no parts."""
    return tuple(part for part in place if part not in parts_of(Stream))


def _sentence(path: tuple[int | str, ...], detail: ErrorDetails, references: References) -> str:
    kind = detail["type"]
    context = {name: _without_point(value) for name, value in detail.get("ctx", {}).items()}
    if kind == "extra_forbidden":
        return _unknown_key(path)
    if kind == "missing":
        return f"{_dotted(path)} is missing; it has no default"
    shown = _shown(path, detail["input"], references)
    if kind == "value_error":
        reason = masked_urls(str(context.get("error", detail["msg"])))
        if isinstance(detail["input"], (dict, list)) and not reason.startswith("is "):
            shown = ""  # the sentence already names the relevant part
        return f"{_dotted(path)}: {shown} {reason}" if path and shown else f"{_dotted(path)} {reason}".strip()
    if kind == "string_pattern_mismatch":
        choices = str(context.get("pattern", "")).strip("^$()").replace("|", ", ")
        return f"{_dotted(path)}: {shown} is not one of {choices}"
    if kind == "tuple_type" and isinstance(detail["input"], str) and shown != MASK:
        return f"{_dotted(path)}: {shown} is not a list; write {in_line([detail['input']])}"
    if kind == "string_type" and isinstance(detail["input"], (dict, list)):
        kind = "text_in_place"
    if kind == "enum" and isinstance(detail["input"], dict):
        kind = "word_in_place"
    if kind == "string_type" and detail["input"] is None:
        kind = "text_for_null"
    reason = _EXPECTED.get(kind, "").format(**context) or f"is refused: {detail['msg'][0].lower()}{detail['msg'][1:]}"
    return f"{_dotted(path)}: {shown or 'the value'} {reason}"


def _is_type_name(part: str) -> bool:
    return part in {"str", "int", "float", "bool", "none", "nullable"} or part.startswith(("function-", "dict["))


def _shown(path: tuple[int | str, ...], value: object, references: References) -> str:
    """A value as an error may quote it; empty if it is too long, or a whole section."""
    if any(sounds_secret(str(part)) for part in path):
        return MASK
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, BaseModel):
        return ""
    masked = references.masked(value, tuple(map(str, path)))
    if isinstance(value, (dict, list)):
        plain = in_line(masked)
        return plain if len(plain) <= _SHOWN_CHARACTERS else ""
    return MASK if masked == MASK else repr(_without_point(masked))


def _without_point(value: object) -> object:
    """A whole number without its decimal point: durations are parsed to floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def in_line(value: object) -> str:
    """A value as YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).strip()


def _unknown_key(path: tuple[int | str, ...]) -> str:
    known = _known_keys(path[:-1])
    key = str(path[-1])
    if sections := _sections_with(key):
        return f"{_dotted(path)} is not a setting here; {key} is a key of {' and of '.join(sections)}"
    if choices := _settings_with_choice(path[:-1], key):
        return f"{_dotted(path)} is not a setting; did you mean {choices[0]}: {key}?"
    longer = sorted((name for name in known if key.startswith(f"{name}_")), key=len, reverse=True)  # http_port: http
    close_matches = (
        difflib.get_close_matches(key, known, n=1, cutoff=0.8)
        or longer
        or difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    )
    hint = f"did you mean {close_matches[0]}?" if close_matches else f"available here: {', '.join(sorted(known))}"
    return f"{_dotted(path)} is not a setting; {hint}"


def _sections_with(key: str) -> list[str]:
    """The sections that have this key: those of the top level, else those inside them."""
    outer = _inner_sections(Settings)
    inner = {f"{outside}.{name}": model for outside in outer for name, model in _inner_sections(outer[outside]).items()}
    for sections in ({"the file's top level": Settings}, outer, inner):
        if names := [name for name, model in sections.items() if key in dict(fields_of(model))]:
            return names
    return []


def _inner_sections(section: type[BaseModel]) -> dict[str, type[BaseModel]]:
    models = {name: model_in(field.annotation) for name, field in fields_of(section)}
    return {name: model for name, model in models.items() if model is not None}


def _settings_with_choice(path: tuple[int | str, ...], value: str) -> list[str]:
    """The settings of a section that take this word."""
    model = _model_at(path)
    fields = () if model is None else fields_of(model)
    return [key for key, field in fields if value in _choices(field.annotation)]


def _choices(annotation: object) -> list[str]:
    if inspect.isclass(annotation) and issubclass(annotation, StrEnum):
        return [choice.value for choice in annotation]
    return [choice for argument in typing.get_args(annotation) for choice in _choices(argument)]


def _known_keys(path: tuple[int | str, ...]) -> list[str]:
    model = _model_at(path)
    return [] if model is None else [key for key, _ in fields_of(model)]


def _model_at(path: tuple[int | str, ...]) -> type[BaseModel] | None:
    model: type[BaseModel] = Settings
    is_own_name = False
    """Whether the part is a name that the user chose: a key of a map of sections."""
    for part in path:
        if isinstance(part, int) or is_own_name:
            is_own_name = False
            continue
        annotation = next((field.annotation for key, field in fields_of(model) if part == key), None)
        inner = model_in(annotation)
        if inner is None:
            return None
        model, is_own_name = inner, typing.get_origin(annotation) is dict
    return model


def _dotted(path: tuple[object, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
