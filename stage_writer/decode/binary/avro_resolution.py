"""Records that are resolved to a reader's schema: what fastavro leaves to its caller, units and defaults' values."""

from collections.abc import Iterator
from typing import Any, cast

from common.errors import SchemaError
from common.schema.avro import AvroSchema, Schema, decimal_of, logical_type, member_names, part_of, promoted, type_name
from stage_writer.decode.binary.avro_plan import plain_name

Fields = list[dict[str, Any]]

_WHOLE = {"int", "long"}


def plain_default(avro: AvroSchema, schema: Schema, default: Any) -> object:  # noqa: ANN401, PLR0911 - any JSON
    """A default as the value that a reader of bare values gives: bytes for their text, a union's first type."""
    schema = avro.resolved(schema)
    match type_name(schema):
        case "union" if default is not None:
            members = _members(avro, schema)
            value = plain_default(avro, members[0], default)
            if promoted(avro, members) is not None:
                return value
            return {plain_name(member_names(avro, members)[0]): value}
        case "record" | "error":
            values = {
                each["name"]: default[each["name"]] if each["name"] in default else each["default"]
                for each in _fields(schema)
            }
            return {each["name"]: plain_default(avro, each["type"], values[each["name"]]) for each in _fields(schema)}
        case "array":
            return [plain_default(avro, part_of(schema, "items"), each) for each in default]
        case "map":
            return {key: plain_default(avro, part_of(schema, "values"), each) for key, each in default.items()}
        case "bytes" | "fixed":
            return default.encode("latin-1")
        case "float" | "double":
            return float(default)
        case _:
            return default


def require_same_units(writer: AvroSchema, reader: AvroSchema) -> None:
    """Raises SchemaError for a number that the two schemas take in different units: resolved, it is another value."""
    for path, written, wanted in _numbers((writer, writer.schema), (reader, reader.schema), "", frozenset()):
        if written != wanted:
            msg = f"`{path}` is a {written} in the record's schema, and a {wanted} in the schema_file"
            raise SchemaError(msg, "give the field in the schema_file the type that it has in the record's schema")


def _numbers(
    written: tuple[AvroSchema, Schema], wanted: tuple[AvroSchema, Schema], path: str, inside: frozenset[str]
) -> Iterator[tuple[str, str, str]]:
    """Path and units of each number that has a unit in both schemas."""
    (writer, writer_schema), (reader, reader_schema) = written, wanted
    for of_writer in _members(writer, writer_schema):
        of_reader = _resolved_to(of_writer, _members(reader, reader_schema))
        if of_reader is None:
            continue
        parts: list[tuple[Schema, Schema, str]] = []
        match type_name(of_reader):
            case "record" | "error" if str(cast("Any", of_reader)["name"]) not in inside:
                inside |= {str(cast("Any", of_reader)["name"])}
                by_name = {each["name"]: each for each in _fields(of_writer)}
                for field in _fields(of_reader):
                    names = (field["name"], *field.get("aliases", ()))
                    sent = next((by_name[name] for name in names if name in by_name), None)
                    if sent is not None:
                        parts.append(
                            (sent["type"], field["type"], f"{path}.{field['name']}" if path else field["name"])
                        )
            case "array" | "map" as kind:
                part = "items" if kind == "array" else "values"
                parts.append((part_of(of_writer, part), part_of(of_reader, part), f"{path}[]"))
            case _:
                units = _unit(of_writer), _unit(of_reader)
                if units[0] is not None and units[1] is not None:
                    yield path, units[0], units[1]
        for part_written, part_wanted, part_path in parts:
            yield from _numbers((writer, part_written), (reader, part_wanted), part_path, inside)


def _members(avro: AvroSchema, schema: Schema) -> list[Schema]:
    """The types of a union, without null; of any other schema itself."""
    schema = avro.resolved(schema)
    members = [avro.resolved(cast("Schema", each)) for each in schema] if isinstance(schema, list) else [schema]
    return [each for each in members if type_name(each) != "null"]


def _resolved_to(written: Schema, choices: list[Schema]) -> Schema | None:
    kind, name = type_name(written), _short_name(written)
    same = [each for each in choices if type_name(each) == kind]
    wider = [each for each in choices if {kind, type_name(each)} == _WHOLE]
    return next((each for each in same if _short_name(each) == name), next(iter((*same, *wider)), None))


def _short_name(schema: Schema) -> str:
    return str(schema.get("name", "")).rpartition(".")[2] if isinstance(schema, dict) else ""


def _unit(schema: Schema) -> str | None:
    decimal, logical = decimal_of(schema), logical_type(schema) or ""
    if decimal is not None:
        return f"decimal of scale {decimal[1]}"
    return logical.removeprefix("local-") if logical.startswith(("date", "time", "local-timestamp")) else None


def _fields(record: Schema) -> Fields:
    return cast("Fields", cast("dict[str, object]", record)["fields"])
