"""A schema registry over HTTP for tests: ``with running_registry() as registry: registry.url``.

It implements only the calls that Confluent's client makes: registering schemas, and reading them by id or by subject
and version. It checks no compatibility and stores nothing on disk. It can be stopped, and started again at the same
address with the same schemas. (devservices/apicurio.py runs a whole registry.)
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
_POLL_INTERVAL_S = 0.02


@dataclass(slots=True)
class Registry:
    """The schemas, and the server that serves them while it runs."""

    port: int
    user_info: str | None
    schemas: list[dict[str, object]] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    """Schema ids of each subject's versions; versions count from 1."""
    requests: list[str] = field(default_factory=list)
    """Method and path of each request."""
    server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def register(
        self, schema: str, kind: str = "JSON", subject: str = "", references: Sequence[Mapping[str, object]] = ()
    ) -> int:
        """Register a schema as a version of the subject, and return its id (from 1; equal schemas share one)."""
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
        """The GUID of a schema, derived from its content."""
        return str(uuid5(NAMESPACE_URL, json.dumps(self.schemas[number - 1], sort_keys=True)))

    def by_guid(self, guid: str) -> Mapping[str, object] | None:
        return next((schema for number, schema in enumerate(self.schemas, 1) if self.guid(number) == guid), None)

    def start(self) -> None:
        self.server = ThreadingHTTPServer((HOST, self.port), type("_Handler", (_Handler,), {"registry": self}))
        threading.Thread(target=self.server.serve_forever, args=(_POLL_INTERVAL_S,), daemon=True).start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


class _Handler(BaseHTTPRequestHandler):
    registry: Registry

    def do_GET(self) -> None:
        parts = self._path_parts()
        if parts is None:
            return
        if parts == ["schemas", "types"]:
            self._respond(200, ["JSON", "PROTOBUF", "AVRO"])
        elif parts[:2] == ["schemas", "ids"] and len(parts) == _ID_PARTS:
            number = int(parts[2])
            if 1 <= number <= len(self.registry.schemas):
                self._respond(200, self.registry.schemas[number - 1])
            else:
                self._respond(404, {"error_code": _NO_SCHEMA, "message": f"Schema {number} not found"})
        elif parts[:2] == ["schemas", "guids"] and len(parts) == _ID_PARTS:
            self._respond_found(self.registry.by_guid(parts[2]), _NO_SCHEMA)
        elif parts[:1] == ["subjects"] and len(parts) == _VERSION_PARTS:
            subject = unquote(parts[1])
            newest = len(self.registry.subjects.get(subject, []))
            version = newest if parts[3] == "latest" else int(parts[3])
            self._respond_found(self.registry.version(subject, version), _NO_SUBJECT)
        else:
            self._respond_found(None)

    def do_POST(self) -> None:
        """Register a version of a subject, or return the existing version with the same schema."""
        body = cast("dict[str, str]", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        parts = self._path_parts()
        if parts is None:
            return
        subject = unquote(parts[1])
        references = cast("list[dict[str, object]]", body.get("references", []))
        number = self.registry.register(body["schema"], body.get("schemaType", "AVRO"), subject, references)
        versions = self.registry.subjects[subject]
        self._respond_found(self.registry.version(subject, versions.index(number) + 1))

    def _respond_found(self, found: Json | None, code: int = 404) -> None:
        missing = {"error_code": code, "message": "Not Found"}
        self._respond(404 if found is None else 200, missing if found is None else found)

    def _path_parts(self) -> list[str] | None:
        """The path's parts, or None after a 401 response."""
        path = self.path.partition("?")[0]
        self.registry.requests.append(f"{self.command} {path}")
        required = self.registry.user_info
        if required is not None:
            given = self.headers.get("Authorization", "").removeprefix("Basic ")
            if given != base64.b64encode(required.encode()).decode():
                self._respond(401, {"error_code": 401, "message": "Unauthorized"})
                return None
        return path.strip("/").split("/")

    def _respond(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log nothing: `Registry.requests` has each request."""


@contextmanager
def running_registry(user_info: str | None = None) -> Iterator[Registry]:
    """Run a registry; with ``user_info`` (``name:password``) it requires these credentials."""
    registry = Registry(free_ports(1)[0], user_info)
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()
