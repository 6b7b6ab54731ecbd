"""A certificate authority for tests: ``Authority(folder).issue("localhost")`` makes a server's certificate.

Rule: the PEM files suit every reader. Java wants the key in PKCS #8, and in the same file as the certificate.
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
    """CA certificate that signed this one."""
    certificate: Path
    key: Path
    both: Path
    """File with the key and the certificate."""


class Authority:
    """Signs certificates; its key exists only in this process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.certificate = folder / "authority.pem"
        """CA certificate that clients must trust."""
        self._authority.cert_pem.write_to_path(self.certificate)

    def issue(self, name: str, *hosts: str, password: str = "") -> Certificate:
        """A certificate for the common name, of a server at ``hosts`` or of a client; ``password`` encrypts the key."""
        # Java refuses a certificate with an empty list of alternative names.
        issued = self._authority.issue_cert(*(hosts or (f"{name}@example.org",)), common_name=name)
        kind = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        files = [self._folder / f"{name}.{part}.pem" for part in ("certificate", "key", "both")]
        certificate = Certificate(self.certificate, *files)
        certificate.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, kind))
        certificate.key.chmod(0o600)
        certificate.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        certificate.both.write_bytes(certificate.key.read_bytes() + certificate.certificate.read_bytes())
        return certificate
