"""JSON records, checked against their JSON Schema: for streams with `validate`.

Rules:

1. A record that the schema allows goes on as it is, byte by byte; the others are refused with the first problem.
2. A message that is not JSON is passed on too: the stream's decoder reports the error. JSON that Python does not parse,
   too deep or with a number of thousands of digits, cannot be checked and is refused.
3. The draft is the schema's, or draft 7, Confluent's default. Nothing is fetched: a schema refers to itself and to its
   references in the registry only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from common.errors import SchemaError
from stage_writer.decode.binary.texts import Texts
from stage_writer.decode.rejects import ErrorClass, Refusal

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_LONGEST = 500


class JsonSchemaReader:
    """A `RecordReader` of JSON with one schema. Raises SchemaError for an invalid one."""

    def __init__(self, schema: str, references: Sequence[tuple[str, str]] = ()) -> None:
        self._validator = _validator(schema, references)

    def read(self, bodies: pa.LargeBinaryArray) -> Texts:
        refused: list[tuple[int, Refusal]] = []
        for index, body in enumerate(bodies.to_pylist()):
            problem = self._problem(body)
            if problem is not None:
                refused.append((index, Refusal(ErrorClass.AGAINST_SCHEMA, problem)))
        if not refused:
            return Texts(bodies, ())
        failing = {index for index, _ in refused}
        kept = pa.array([None if index in failing else index for index in range(len(bodies))], pa.int64())
        return Texts(bodies.take(kept), refused)

    def _problem(self, body: bytes) -> str | None:
        try:
            record = json.loads(body)
            violation = next(iter(self._validator.iter_errors(record)), None)
        except (json.JSONDecodeError, UnicodeDecodeError):
            return None
        except Exception as error:  # noqa: BLE001 - of a schema that refers to nothing, or of a pattern
            return f"the record cannot be checked: {type(error).__name__}: {error}"[:_LONGEST]
        return None if violation is None else f"{violation.json_path}: {violation.message}"[:_LONGEST]


def _validator(schema: str, references: Sequence[tuple[str, str]]) -> Validator:
    from jsonschema.exceptions import SchemaError as InvalidSchemaError  # noqa: PLC0415 - only with `validate`
    from jsonschema.validators import Draft7Validator, validator_for  # noqa: PLC0415 - only with `validate`
    from referencing import Registry  # noqa: PLC0415 - only with `validate`
    from referencing.jsonschema import DRAFT7  # noqa: PLC0415 - only with `validate`

    try:
        document = json.loads(schema)
        kind = validator_for(document, default=Draft7Validator)
        kind.check_schema(document)
        resources = [(name, DRAFT7.create_resource(json.loads(text))) for name, text in references]
    except (ValueError, TypeError, AttributeError, RecursionError, InvalidSchemaError) as error:
        msg = f"the JSON Schema is invalid: {str(error).partition(chr(10))[0]}"
        raise SchemaError(msg, "fix the schema, or use a valid one") from None
    validator: Validator = kind(document, registry=Registry().with_resources(resources))
    return validator
