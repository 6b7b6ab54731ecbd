"""An OAuth token endpoint over HTTPS with the client-credentials grant, as identity providers offer it.

``with running_tokens(authority, folder, {"writer": "secret"}) as tokens: tokens.url``. The tokens are JWTs; the public
half of the signing key is in `Tokens.keys`, where a Kafka broker can read it.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from devservices.certificates import Authority
from devservices.ports import HOST

AUDIENCE = "kafka"
ISSUER = "devservices"
_LIFETIME_S = 300


@dataclass(frozen=True, slots=True)
class Tokens:
    url: str
    keys: Path
    """Key set (JWKS) that verifies the tokens."""


@contextmanager
def running_tokens(authority: Authority, folder: Path, clients: Mapping[str, str]) -> Iterator[Tokens]:
    """Issue tokens to ``clients`` (name to secret)."""
    key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
    keys = folder / "keys.json"
    keys.write_text(json.dumps(KeySet([key]).as_dict(private=False)), "utf-8")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            name, given = _basic(self.headers.get("Authorization", ""))
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            known = clients.get(name)
            if known is None or given != known:
                self._answer(401, {"error": "invalid_client", "error_description": f"unknown client or secret: {name}"})
                return
            now_s = int(time.time())
            claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": name, "iat": now_s, "exp": now_s + _LIFETIME_S}
            token = jwt.encode({"alg": "RS256", "kid": "one"}, claims, key)
            self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": _LIFETIME_S})

        def _answer(self, status: int, body: Mapping[str, object]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    issued = authority.issue("tokens", HOST)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Tokens(f"https://{HOST}:{server.server_port}/token", keys)
        finally:
            server.shutdown()
            thread.join()


def _basic(header: str) -> tuple[str, str]:
    """Name and secret from an HTTP basic authentication header."""
    kind, _, encoded = header.partition(" ")
    if kind != "Basic":
        return "", ""
    name, _, secret = base64.b64decode(encoded).decode().partition(":")
    return name, secret
