"""The JSON Schema of a config file, for editors.

Rules:

1. Keys and sentences are those of the settings' own declarations; values with a unit or a grammar say their own schema
   where they are declared (common/settings/values.py).
2. It takes whatever `common.settings.load` takes: any number, and ``true`` and ``false``, may also be a reference,
   ``${NAME}``. It cannot see what one setting has to do with another; ``stage-writer check`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic.json_schema import GenerateJsonSchema

from common.settings.model import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core.core_schema import ModelSchema

Json = dict[str, object]

_REFERENCE: Json = {"type": "string", "pattern": r"\$\{[^}]+\}"}
_SCALARS = ("integer", "number", "boolean")
_NAMED = ("properties", "$defs")
"""What holds schemas by names of the settings' own."""
_AS_IT_IS = ("default", "examples", "enum", "const", "required")

_ABOUT = ("description", "default", "examples")


class _WithTextDefaults(GenerateJsonSchema):
    """Defaults as somebody would write them: ``60s`` and not 60.0."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        model = schema["cls"]
        if not any(field.is_required() for field in model.model_fields.values()):
            for key, value in model().model_dump(mode="json", by_alias=True).items():
                found["properties"][key]["default"] = value
        return found


def settings_schema() -> Json:
    """The schema of the whole file."""
    about: Json = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kafka-delta-express",
        "description": "The config of stage-writer, delta-loader and bootstrap.",
    }
    plain = Settings.model_json_schema(by_alias=True, mode="validation", schema_generator=_WithTextDefaults)
    found = _with_references(plain)
    return about | {key: value for key, value in found.items() if key not in about}


def _with_references(schema: Mapping[str, object]) -> Json:
    """Rule 2, at any depth."""
    # The titles are pydantic's own, and say nothing that the key does not.
    found = {key: _inner(key, value) for key, value in schema.items() if key != "title"}
    if found.get("type") in _SCALARS or "enum" in found:
        about: Json = {key: found.pop(key) for key in _ABOUT if key in found}
        return about | {"anyOf": [found, _REFERENCE]}
    if found.get("type") == "string" and "pattern" in found:
        found["pattern"] = rf"{found['pattern']}|\$\{{[^}}]+\}}"
    return found


def _inner(key: str, value: object) -> object:
    if key in _AS_IT_IS:
        return value
    if key in _NAMED and isinstance(value, dict):
        return {name: _with_references(inner) for name, inner in value.items()}
    if isinstance(value, dict):
        return _with_references(value)
    return [_inner("", one) for one in value] if isinstance(value, list) else value
