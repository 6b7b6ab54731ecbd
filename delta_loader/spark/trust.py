"""The certificate authorities that Java trusts in addition to its own: those of the store's Python client.

Rules:

1. One setting serves both services: the authorities of fsspec's client (``client_kwargs: {verify: PATH}``, or
   ``AWS_CA_BUNDLE``) become Java's trust store, together with Java's own authorities.
2. Java reads its trust store when it first uses TLS, so it is set right after Java's start, before any file system.
3. It is for the driver. The executors of a cluster are configured by the cluster's operator.
4. The trust store is a file that exists as long as the process; the next process deletes the file of a killed one.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from py4j.protocol import Py4JError

from common.errors import ConfigError
from delta_loader.spark.bridge import Java

_STORE = "javax.net.ssl.trustStore"
_FOLDER = "delta-loader-authorities-"
_PASSWORD = "changeit"  # noqa: S105 - a store of public certificates has to have one; this is Java's own


def authorities_of(storage_options: Mapping[str, object], environ: Mapping[str, str]) -> Path | None:
    """The file of certificates (PEM) that the store is verified with; None for the system's."""
    client = storage_options.get("client_kwargs")
    given = client.get("verify") if isinstance(client, dict) else None
    if isinstance(given, str):
        return Path(given)
    bundle = environ.get("AWS_CA_BUNDLE")
    return Path(bundle) if bundle else None


def trust(gateway: Java, authorities: Path) -> None:
    """Make Java trust these authorities as well; a user's own trust store is left alone. Raises ConfigError."""
    system = gateway.jvm.java.lang.System
    if system.getProperty(_STORE) is not None:
        return
    try:
        own_certificates = _certificates(gateway.jvm, authorities)
    except Py4JError as error:
        msg = f"{authorities} does not exist, or has no certificates"
        raise ConfigError(msg, "set client_kwargs.verify, or AWS_CA_BUNDLE, to the path of a PEM file") from error
    store = gateway.jvm.java.security.KeyStore.getInstance("PKCS12")
    store.load(None, None)
    for number, certificate in enumerate([*own_certificates, *_usual(gateway.jvm)]):
        store.setCertificateEntry(str(number), certificate)
    _delete_left()
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = str(folder / "authorities.p12")
    password = gateway.new_array(gateway.jvm.char, len(_PASSWORD))
    for index, character in enumerate(_PASSWORD):
        password[index] = character
    stream = gateway.jvm.java.io.FileOutputStream(path)
    store.store(stream, password)
    stream.close()
    for key, value in {"": path, "Type": "PKCS12", "Password": _PASSWORD}.items():
        system.setProperty(f"{_STORE}{key}", value)


def _delete_left() -> None:
    """Delete the folders of processes that are gone; a folder with this process's id is old, since it has none yet."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*-*"):
        number = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if number.isdecimal() and (int(number) == os.getpid() or not _is_alive(int(number))):
            shutil.rmtree(folder, ignore_errors=True)  # another user's folder stays


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _certificates(jvm: Java, path: Path) -> list[Java]:
    stream = jvm.java.io.FileInputStream(str(path))
    try:
        certificates = list(jvm.java.security.cert.CertificateFactory.getInstance("X.509").generateCertificates(stream))
    finally:
        stream.close()
    return certificates


def _usual(jvm: Java) -> list[Java]:
    """Java's own authorities, from their file: asking Java for them would fix its trust store."""
    path = Path(jvm.java.lang.System.getProperty("java.home")) / "lib" / "security" / "cacerts"
    if not path.exists():
        return []
    store = jvm.java.security.KeyStore.getInstance(jvm.java.security.KeyStore.getDefaultType())
    stream = jvm.java.io.FileInputStream(str(path))
    store.load(stream, None)
    stream.close()
    return [certificate for alias in list(store.aliases()) if (certificate := store.getCertificate(alias)) is not None]
