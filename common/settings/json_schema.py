"""The JSON Schema of a config file, for editors.

Rules:

1. Keys and sentences are those of the settings' own declarations; values with a unit or a grammar declare their own
   schema (common/settings/values.py).
2. It accepts everything that `common.settings.load` accepts: any number, and ``true`` and ``false``, may also be a
   reference, ``${NAME}``. It cannot check relations between settings; ``stage-writer check`` does.
"""

from collections.abc import Mapping

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from common.settings.model import Settings

Json = dict[str, object]

_REFERENCE: Json = {"type": "string", "pattern": r"\$\{[^}]+\}"}
_SCALARS = ("integer", "number", "boolean")
_NAMED = ("properties", "$defs")
"""Keywords that hold schemas by the settings' own names."""
_AS_IT_IS = ("default", "examples", "enum", "const", "required")

_OF_PYDANTIC = ("title", "gt")
"""Titles that add nothing to the key, and limits of values with a unit, for which JSON Schema has no keyword."""
_ABOUT = ("description", "default", "examples")


class _WithTextDefaults(GenerateJsonSchema):
    """Defaults as a user would write them: ``60s`` and not 60.0."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        model_schema = super().model_schema(schema)
        model = schema["cls"]
        if not any(field.is_required() for field in model.model_fields.values()):
            for key, value in model().model_dump(mode="json", by_alias=True).items():
                model_schema["properties"][key]["default"] = value
        return model_schema


def settings_schema() -> Json:
    about: Json = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kafka-delta-express",
        "description": "The config of stage-writer, delta-loader and bootstrap.",
    }
    plain = Settings.model_json_schema(by_alias=True, mode="validation", schema_generator=_WithTextDefaults)
    with_references = _with_references(plain)
    return about | {key: value for key, value in with_references.items() if key not in about}


def _with_references(schema: Mapping[str, object]) -> Json:
    """Rule 2, at any depth."""
    described = {key: _inner(key, value) for key, value in schema.items() if key not in _OF_PYDANTIC}
    if described.get("type") in _SCALARS or "enum" in described:
        about: Json = {key: described.pop(key) for key in _ABOUT if key in described}
        return about | {"anyOf": [described, _REFERENCE]}
    if described.get("type") == "string" and "pattern" in described:
        described["pattern"] = rf"{described['pattern']}|\$\{{[^}}]+\}}"
    return described


def _inner(key: str, value: object) -> object:
    if key in _AS_IT_IS:
        return value
    if key in _NAMED and isinstance(value, dict):
        return {name: _with_references(inner) for name, inner in value.items()}
    if isinstance(value, dict):
        return _with_references(value)
    return [_inner("", item) for item in value] if isinstance(value, list) else value
