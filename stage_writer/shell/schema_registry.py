"""The schema registry over HTTP, by confluent-kafka's client: what type a schema is.

Rules:

1. What a schema is never changes, so each is asked for once. One that is not there may have been registered a moment
   ago: it is asked for again a few times, and then not for a minute.
2. While the registry does not answer, the writer waits and tries again with growing pauses, as it does with a store;
   when that takes too long it ends with the error. Nothing is said of the messages meanwhile. It waits no longer than
   Kafka's patience with a consumer that does not poll lasts.
3. The client's package brings libraries that others need not have: it is imported when a stream asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from common.errors import ConfigError, RegistryError
from common.settings.load import mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from common.ports import Clock
    from common.settings.section import Option

GIVE_UP_AFTER_S = 240.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_ASKED_AGAIN_S = 0.5
_TIMES_ASKED = 4
_FORGET_ABSENT_AFTER_S = 60.0
_NOT_FOUND = 404
_EXTRA = "pip install 'kafka-delta-express[stage-writer,schema-registry]'"


class _Schema(Protocol):
    schema_type: str | None


class _Client(Protocol):
    def get_schema(self, schema_id: int) -> _Schema: ...

    def get_schema_types(self) -> list[str]: ...


class SchemaRegistry:
    """A `core.envelopes.framing.SchemaTypes`. Raises ConfigError for settings that the client does not take."""

    def __init__(
        self,
        settings: Mapping[str, Option],
        clock: Clock,
        log: FilteringBoundLogger,
        give_up_after_s: float = GIVE_UP_AFTER_S,
    ) -> None:
        self._url = mask("url", settings.get("url"))
        self._clock = clock
        self._log = log
        self._give_up_after_s = give_up_after_s
        self._client = _client(settings)
        self._types: dict[int, str] = {}
        self._absent_until_s: dict[int, float] = {}

    def check(self) -> None:
        """Raises RegistryError when the registry does not answer, or refuses us."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415

        try:
            self._client.get_schema_types()
        except SchemaRegistryError as error:
            if error.http_status_code != _NOT_FOUND:  # some registries do not have that question
                raise self._away(error) from error
        except Exception as error:  # the client lets its HTTP library's own through
            raise self._away(error) from error

    def types_of(self, ids: Sequence[int]) -> Mapping[int, str | None]:
        """The type of each schema; see the port."""
        return {schema: self._type_of(schema) for schema in ids}

    def _type_of(self, schema: int) -> str | None:
        known = self._types.get(schema)
        if known is not None or self._clock.monotonic_s() < self._absent_until_s.get(schema, 0.0):
            return known
        for again in range(_TIMES_ASKED):
            if again:
                self._clock.sleep_s(_ASKED_AGAIN_S)
            found = self._asked(schema)
            if found is not None:
                self._types[schema] = found
                return found
        self._absent_until_s[schema] = self._clock.monotonic_s() + _FORGET_ABSENT_AFTER_S
        return None

    def _asked(self, schema: int) -> str | None:
        """What the registry says, waited for (rule 2)."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415

        began_s, pause_s = self._clock.monotonic_s(), _FIRST_PAUSE_S
        while True:
            try:
                return self._client.get_schema(schema).schema_type or "AVRO"  # that the registry need not name
            except SchemaRegistryError as error:
                if error.http_status_code == _NOT_FOUND:
                    return None
                away = self._away(error)
            except Exception as error:  # the client lets its HTTP library's own through  # noqa: BLE001
                away = self._away(error)
            if self._clock.monotonic_s() - began_s > self._give_up_after_s:
                raise away
            self._log.warning("schema registry does not answer, trying again", error=away.problem, retry_in_s=pause_s)
            self._clock.sleep_s(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _away(self, error: Exception) -> RegistryError:
        msg = f"the schema registry {self._url} does not answer: {type(error).__name__}: {error}"
        return RegistryError(msg, "mend the registry, or schema_registry's url and credentials")


def _client(settings: Mapping[str, Option]) -> _Client:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415
    except ImportError as error:
        msg = f"framing: confluent needs a package that is not installed ({error.name})"
        raise ConfigError(msg, _EXTRA) from error
    try:
        client: _Client = SchemaRegistryClient(dict(settings))
    except (ValueError, TypeError) as error:
        msg = f"schema_registry is refused by confluent-kafka's client: {error}"
        raise ConfigError(msg, "give what confluent_kafka.schema_registry.SchemaRegistryClient takes") from None
    return client
