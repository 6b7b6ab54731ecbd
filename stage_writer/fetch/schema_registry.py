"""Schemas, from a schema registry over HTTP by confluent-kafka's client.

Rules:

1. A schema never changes, so each is requested once. A missing one may have been registered a moment ago: it is
   requested again a few times, and then not for a minute. Only the registry's own code says that one is missing: any
   other 404 is of a proxy, or of a wrong URL. Of many at once that cannot be so: messages that only look
   framed name as many ids as there are messages. They are requested once, and forgotten later.
2. Requests run in a background thread, one at a time, and are retried with growing pauses while the registry does not
   answer, as long as `knows` is called. The messages wait meanwhile. A healthy registry answers within the short time
   that the first request for an id may block; an unhealthy one blocks no caller, and neither do missing ids.
3. A schema of a type whose text is used comes with those that it refers to, at any depth.
4. The client's package pulls in libraries that other streams do not need: it is imported when a stream uses a registry.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

from structlog import get_logger
from structlog.typing import FilteringBoundLogger

from common.backoff import Backoff
from common.clock import SystemClock
from common.errors import ConfigError, RegistryError
from common.ports import Clock
from common.settings import Settings
from common.settings.masking import mask
from common.settings.section import Option
from stage_writer.decode.envelopes.framing import RegisteredSchema, SchemaKey

GIVE_UP_AFTER_S = 240.0
_PATIENCE_S = 1.0
_ASKED_AGAIN_S = 0.5
_TIMES_ASKED = 4
_FEW = 20
"""How many missing schemas may be new ones."""
_FORGET_ABSENT_AFTER_S = 60.0
_NOT_FOUND = 404
"""The status; and what its own codes begin with: 40401 for a subject, 40402 for a version, 40403 for a schema."""
_LARGEST_ID = (1 << 31) - 1
_EXTRA = "pip install 'kafka-delta-express[stage-writer,schema-registry]'"


class _Reference(Protocol):
    name: str
    subject: str
    version: int


class _Schema(Protocol):
    schema_str: str | None
    schema_type: str | None
    references: Sequence[_Reference] | None


class _Version(Protocol):
    schema: _Schema
    schema_id: int | None


class _Client(Protocol):
    def get_schema(self, schema_id: int) -> _Schema: ...

    def get_schema_by_guid(self, guid: str) -> _Schema: ...

    def get_version(self, subject_name: str, version: int) -> _Version: ...

    def get_latest_version(self, subject_name: str) -> _Version: ...

    def get_schema_types(self) -> list[str]: ...


class SchemaRegistry:
    """A `decode.envelopes.framing.SchemaTypes`. Raises ConfigError for settings that the client rejects."""

    def __init__(
        self,
        settings: Mapping[str, Option],
        clock: Clock,
        log: FilteringBoundLogger,
        give_up_after_s: float = GIVE_UP_AFTER_S,
        *,
        resolves: Collection[str] = (),
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """``resolves``: types whose schemas are wanted with references (rule 3). `knows` may block ``patience_s``."""
        self._url = mask("url", settings.get("url"))
        self._clock = clock
        self._log = log
        self._give_up_after_s = give_up_after_s
        self._client = _client(settings)
        self._resolves = resolves
        self._patience_s = patience_s
        self._schemas: dict[SchemaKey, RegisteredSchema | None] = {}
        self._absent_until_s: dict[SchemaKey, float] = {}
        self._asking: threading.Thread | None = None
        self._answered = threading.Event()
        self._request_at_s = 0.0
        self._backoff = Backoff()
        self._away: RegistryError | None = None

    def check(self) -> None:
        """Raises RegistryError when the registry does not answer, or refuses us."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415

        try:
            self._client.get_schema_types()
        except SchemaRegistryError as error:
            if error.http_status_code != _NOT_FOUND:
                raise self._refusal(error) from error
            self._fetch(1)  # some registries do not have that endpoint
        except Exception as error:  # the client lets its HTTP library's errors through
            raise self._refusal(error) from error

    def latest_of(self, subject: str) -> tuple[int, RegisteredSchema] | None:
        """The newest schema of a subject, with its id; None without one. Waits for the answer; raises RegistryError."""
        versions: list[_Version] = []

        def ask() -> _Schema:
            versions.append(self._client.get_latest_version(subject))
            return versions[0].schema

        schema = self._request(ask)
        registered = None if schema is None else self._registered(schema)
        if registered is None or not versions or versions[0].schema_id is None:
            return None
        return versions[0].schema_id, registered

    def knows(self, ids: Sequence[SchemaKey]) -> bool:
        """Whether the type of each schema is known; see the port. Called by one thread."""
        unknown = self._unknown(ids)
        if unknown and self._ask(ids) and self._away is None and len(unknown) <= _FEW:
            self._answered.wait(self._patience_s)
        return not self._unknown(ids)

    def missing(self, ids: Sequence[SchemaKey]) -> RegistryError:
        msg = f"the schema registry {self._url} has not returned the schemas {', '.join(map(str, ids[:5]))} yet"
        return self._away or RegistryError(msg, "check that the registry responds")

    def types_of(self, ids: Sequence[SchemaKey]) -> Mapping[SchemaKey, str | None]:
        """The type of each schema; see the port."""
        began_s = self._clock.monotonic_s()
        while any(schema not in self._schemas for schema in ids):
            self._ask(ids)
            if self._asking is not None and self._asking.is_alive():
                self._asking.join()
            elif self._away is not None and self._clock.monotonic_s() - began_s > self._give_up_after_s:
                raise self._away
            else:
                self._clock.sleep_s(max(0.0, self._request_at_s - self._clock.monotonic_s()))
        schemas = {schema: self._schemas[schema] for schema in ids}
        return {schema: None if known is None else known.type for schema, known in schemas.items()}

    def schema_of(self, schema: SchemaKey) -> RegisteredSchema:
        """A schema whose type is known; see the port."""
        registered = self._schemas[schema]
        if registered is None:
            raise LookupError(f"the registry does not have the schema {schema}")
        return registered

    def _unknown(self, ids: Sequence[SchemaKey]) -> list[SchemaKey]:
        """The ids to request, repeated requests included (rule 1)."""
        now_s = self._clock.monotonic_s()
        return [
            schema
            for schema in ids
            if schema not in self._schemas or (self._schemas[schema] is None and now_s >= self._absent_until_s[schema])
        ]

    def _ask(self, ids: Sequence[SchemaKey]) -> bool:
        """Start requests, if they are due and none is running (rule 2); whether it did."""
        if (self._asking is not None and self._asking.is_alive()) or self._clock.monotonic_s() < self._request_at_s:
            return False
        wanted = self._unknown(ids)
        self._forget_absent()
        self._answered.clear()
        self._asking = threading.Thread(target=self._ask_all, args=(wanted,), name="schema-registry", daemon=True)
        self._asking.start()
        return True

    def _ask_all(self, ids: Sequence[SchemaKey]) -> None:
        """Request and record the types; runs in a thread of its own."""
        absent: list[SchemaKey] = []
        try:
            self._add_absent(ids, absent)
            for _ in range(_TIMES_ASKED - 1):
                if not 0 < len(absent) <= _FEW:
                    break
                self._answered.set()
                self._clock.sleep_s(_ASKED_AGAIN_S)
                again, absent = absent, []
                self._add_absent(again, absent)
            self._record_absent(absent)
        except RegistryError as error:
            if len(absent) > _FEW:
                self._record_absent(absent)  # otherwise one failure among many requests repeats them all
            pause_s = self._backoff.next_s()
            self._log.warning("schema registry does not respond, trying again", error=error.problem, retry_in_s=pause_s)
            self._request_at_s = self._clock.monotonic_s() + pause_s
            self._away = error
        else:
            self._away = None
            self._backoff.reset()
        finally:
            self._answered.set()

    def _record_absent(self, absent: Collection[SchemaKey]) -> None:
        until_s = self._clock.monotonic_s() + _FORGET_ABSENT_AFTER_S
        for schema in absent:
            self._absent_until_s[schema] = until_s
            self._schemas[schema] = None

    def _add_absent(self, ids: Sequence[SchemaKey], absent: list[SchemaKey]) -> None:
        """Request each once, and record those that the registry has; the others are added to ``absent``."""
        for schema in ids:
            registered = self._fetch(schema)
            if registered is None:
                absent.append(schema)
            else:
                self._schemas[schema] = registered

    def _forget_absent(self) -> None:
        """Drop the missing ids that no message has asked for in a while (rule 1)."""
        before_s = self._clock.monotonic_s() - _FORGET_ABSENT_AFTER_S
        for schema in [schema for schema, until_s in self._absent_until_s.items() if until_s < before_s]:
            del self._absent_until_s[schema]
            if self._schemas[schema] is None:
                del self._schemas[schema]

    def _fetch(self, schema: SchemaKey) -> RegisteredSchema | None:
        """The registry's current answer; None for an id that it does not have. Raises RegistryError."""
        if isinstance(schema, int) and schema > _LARGEST_ID:
            return None
        response = self._request(lambda: self._schema(schema))
        return None if response is None else self._registered(response)

    def _registered(self, schema: _Schema) -> RegisteredSchema | None:
        """The schema with what it refers to; None where the registry does not have all of that."""
        kind = schema.schema_type or "AVRO"  # the registry may omit the default
        references: dict[str, str] = {}
        if kind in self._resolves and not self._add_references(schema, references):
            return None
        return RegisteredSchema(kind, schema.schema_str or "", tuple(references.items()))

    def _add_references(self, schema: _Schema, known: dict[str, str]) -> bool:
        """Adds what a schema refers to, in the order that readers need; whether the registry has all of it."""
        for each in schema.references or ():
            if each.name in known:
                continue
            version = self._request(partial(self._version, each))
            if version is None or not self._add_references(version, known):
                return False
            known[each.name] = version.schema_str or ""
        return True

    def _schema(self, schema: SchemaKey) -> _Schema:
        if isinstance(schema, int):
            return self._client.get_schema(schema)
        return self._client.get_schema_by_guid(schema)

    def _version(self, reference: _Reference) -> _Schema:
        return self._client.get_version(reference.subject, reference.version).schema

    def _request(self, request: Callable[[], _Schema]) -> _Schema | None:
        """The registry's answer; None where it does not have what is asked for. Raises RegistryError."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415 - only where it is used

        try:
            return request()
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND and (error.error_code or 0) // 100 == _NOT_FOUND:
                return None
            raise self._refusal(error) from error
        except Exception as error:  # the client lets its HTTP library's errors through
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> RegistryError:
        msg = f"the schema registry {self._url} does not respond: {type(error).__name__}: {error}"
        return RegistryError(msg, "fix the registry, or the URL and credentials in schema_registry")


def _client(settings: Mapping[str, Option]) -> _Client:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"framing: confluent needs a package that is not installed ({error.name})", _EXTRA) from error
    try:
        client: _Client = SchemaRegistryClient(dict(settings))
    except (ValueError, TypeError) as error:
        msg = f"confluent-kafka's client refuses schema_registry: {error}"
        raise ConfigError(msg, "use the options of confluent_kafka.schema_registry.SchemaRegistryClient") from None
    return client


def schemas_of(settings: Settings) -> SchemaRegistry | None:
    """The schema registry; None where no stream has frames. Raises ConfigError for settings that the client rejects."""
    if all(stream.record.framing == "none" for stream in settings.streams):
        return None
    read = {
        stream.record.format.upper()
        for stream in settings.streams
        if stream.record.format != "json" or stream.record.validates
    }
    return SchemaRegistry(settings.schema_registry, SystemClock(), get_logger(), resolves=read)
