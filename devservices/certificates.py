"""A certificate authority of a test's own: ``Authority(folder).issue("localhost")`` is a server's certificate.

Rule: files are PEM as each side reads it. Java wants the key in PKCS #8, and in the same file as the certificate.
"""

from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


@dataclass(frozen=True, slots=True)
class Certificate:
    authority: Path
    """Who has signed it."""
    certificate: Path
    key: Path
    both: Path
    """Key and certificate."""


class Authority:
    """Signs certificates; only this process knows it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.certificate = folder / "authority.pem"
        """What clients have to trust."""
        self._authority.cert_pem.write_to_path(self.certificate)

    def issue(self, name: str, *hosts: str, password: str = "") -> Certificate:
        """A certificate of a server at ``hosts``, or of a client, for the common name; its key may have a password."""
        # Java refuses a certificate whose list of other names is there and empty.
        issued = self._authority.issue_cert(*(hosts or (f"{name}@example.org",)), common_name=name)
        kind = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        files = [self._folder / f"{name}.{part}.pem" for part in ("certificate", "key", "both")]
        found = Certificate(self.certificate, *files)
        found.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, kind))
        found.key.chmod(0o600)
        found.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        found.both.write_bytes(found.key.read_bytes() + found.certificate.read_bytes())
        return found
