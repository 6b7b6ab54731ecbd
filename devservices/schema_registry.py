"""A schema registry's protocol over HTTP, for tests: ``with running_registry() as registry: registry.url``.

What Confluent's client asks of one, and no more: schemas are registered and given by their ids, and by their subjects
and versions. Compatibility is not checked and nothing is kept. It can be stopped, and started again at the same address
with the same schemas.
"""

import base64
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast
from urllib.parse import unquote
from uuid import NAMESPACE_URL, uuid5

from devservices.ports import HOST, free_ports

Json = Mapping[str, object] | list[str]
_ID_PARTS = 3
_VERSION_PARTS = 4
_NO_SUBJECT, _NO_SCHEMA = 40401, 40403
_STOP_WITHIN_S = 0.02


@dataclass(slots=True)
class Registry:
    """The schemas, and the server that gives them out while it is started."""

    port: int
    user_info: str | None
    schemas: list[dict[str, object]] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    """The ids of each subject's versions, which count from 1."""
    asked: list[str] = field(default_factory=list)
    """Method and path of each request."""
    server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def register(
        self, schema: str, kind: str = "JSON", subject: str = "", references: Sequence[Mapping[str, object]] = ()
    ) -> int:
        """The id of a schema: counted from 1, the same for the same schema. It becomes a version of the subject."""
        entry: dict[str, object] = {"schema": schema} if kind == "AVRO" else {"schema": schema, "schemaType": kind}
        if references:
            entry["references"] = list(references)
        if entry not in self.schemas:
            self.schemas.append(entry)
        number = self.schemas.index(entry) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def version(self, subject: str, version: int) -> Mapping[str, object] | None:
        versions = self.subjects.get(subject, [])
        if not 1 <= version <= len(versions):
            return None
        number = versions[version - 1]
        names = {"subject": subject, "version": version, "id": number, "guid": self.guid(number)}
        return {**names, **self.schemas[number - 1]}

    def guid(self, number: int) -> str:
        """The GUID of a schema, which its content decides."""
        return str(uuid5(NAMESPACE_URL, json.dumps(self.schemas[number - 1], sort_keys=True)))

    def by_guid(self, guid: str) -> Mapping[str, object] | None:
        return next((one for number, one in enumerate(self.schemas, 1) if self.guid(number) == guid), None)

    def start(self) -> None:
        self.server = ThreadingHTTPServer((HOST, self.port), type("_Handler", (_Handler,), {"registry": self}))
        threading.Thread(target=self.server.serve_forever, args=(_STOP_WITHIN_S,), daemon=True).start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


class _Handler(BaseHTTPRequestHandler):
    registry: Registry

    def do_GET(self) -> None:
        parts = self._asked()
        if parts is None:
            return
        if parts == ["schemas", "types"]:
            self._answer(200, ["JSON", "PROTOBUF", "AVRO"])
        elif parts[:2] == ["schemas", "ids"] and len(parts) == _ID_PARTS:
            number = int(parts[2])
            if 1 <= number <= len(self.registry.schemas):
                self._answer(200, self.registry.schemas[number - 1])
            else:
                self._answer(404, {"error_code": _NO_SCHEMA, "message": f"Schema {number} not found"})
        elif parts[:2] == ["schemas", "guids"] and len(parts) == _ID_PARTS:
            self._answer_found(self.registry.by_guid(parts[2]), _NO_SCHEMA)
        elif parts[:1] == ["subjects"] and len(parts) == _VERSION_PARTS:
            subject = unquote(parts[1])
            newest = len(self.registry.subjects.get(subject, []))
            version = newest if parts[3] == "latest" else int(parts[3])
            self._answer_found(self.registry.version(subject, version), _NO_SUBJECT)
        else:
            self._answer_found(None)

    def do_POST(self) -> None:
        """Registers a version of a subject, or finds one by its schema."""
        body = cast("dict[str, str]", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        parts = self._asked()
        if parts is None:
            return
        subject = unquote(parts[1])
        references = cast("list[dict[str, object]]", body.get("references", []))
        number = self.registry.register(body["schema"], body.get("schemaType", "AVRO"), subject, references)
        versions = self.registry.subjects[subject]
        self._answer_found(self.registry.version(subject, versions.index(number) + 1))

    def _answer_found(self, found: Json | None, code: int = 404) -> None:
        missing = {"error_code": code, "message": "Not Found"}
        self._answer(404 if found is None else 200, missing if found is None else found)

    def _asked(self) -> list[str] | None:
        """The parts of the path; None after a refusal."""
        path = self.path.partition("?")[0]
        self.registry.asked.append(f"{self.command} {path}")
        wanted = self.registry.user_info
        if wanted is not None:
            given = self.headers.get("Authorization", "").removeprefix("Basic ")
            if given != base64.b64encode(wanted.encode()).decode():
                self._answer(401, {"error_code": 401, "message": "Unauthorized"})
                return None
        return path.strip("/").split("/")

    def _answer(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing: `Registry.asked` tells."""


@contextmanager
def running_registry(user_info: str | None = None) -> Iterator[Registry]:
    """A registry that answers; with ``user_info`` (``name:password``) only to who knows it."""
    registry = Registry(free_ports(1)[0], user_info)
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()
