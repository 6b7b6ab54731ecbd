"""Builds images and runs containers without a daemon or a registry: buildah, runc, and a base image by debootstrap.

Rules:

1. Building needs root on Linux and three programs. If these are missing, or the network does not answer, the engine
   raises `Unavailable` with the reason: that is not a failure of the images.
2. Images and layers are in a separate store in the project's cache: the machine's own images are neither used nor
   replaced. The base image is pulled if a registry answers; otherwise it is built from Debian's packages under the same
   name.
3. A build gets this machine's registry settings as arguments and mounts: pip's index, the Maven repository, the
   certificates. None of these stays in an image.
4. Nothing outlives a run: its processes end with it, and its mounts and containers are removed, also those of a killed
   run.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from common.downloads import MAVEN_URL, cache_folder
from devservices import processes

PROGRAMS = ("buildah", "runc", "debootstrap")
BASE = "docker.io/library/python:3.11-slim-bookworm"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
ROOT = Path(__file__).parents[1]

_DEBIAN = "bookworm"
_PACKAGES = "ca-certificates,netbase,tzdata,python3.11,python3.11-venv,python3-pip"
_INSTALL_S, _PULL_S, _BASE_S, _CALL_S = 300, 60, 600, 120
_PIP = {
    "index-url": "PIP_INDEX_URL",
    "extra-index-url": "PIP_EXTRA_INDEX_URL",
    "trusted-host": "PIP_TRUSTED_HOST",
}


class Unavailable(Exception):  # noqa: N818 - not an error (rule 1)
    """The reason that images cannot be built on this machine."""


class ImageError(Exception):
    """An image does not build, or a container fails its check."""


class TooSlowError(ImageError):
    """A program exceeded its time limit."""


@dataclass(frozen=True)
class Container:
    """An image's mounted file system, and the image's settings for its process."""

    root: Path
    user: str
    environ: tuple[str, ...]
    entrypoint: tuple[str, ...]
    folder: str


class Engine:
    """A store of images. As a context manager, it removes leftovers of earlier runs on entry and its own on exit."""

    def __init__(self, folder: Path, log: Path) -> None:
        """``folder`` holds the store; the programs' output goes to ``log``."""
        self._folder = folder
        self._log = log

    def __enter__(self) -> Self:
        """Lock the store. Other users cannot read it: a build's arguments may hold credentials. Raises Unavailable."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = (self._folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            msg = f"another run uses {self._folder}"
            raise Unavailable(msg) from error
        self._remove_leftovers()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove everything but images and layers."""
        self._remove_leftovers()
        self._lock.close()

    def _remove_leftovers(self) -> None:
        with suppress(ImageError):
            self._buildah("rm", "--all")
        for bundle in self._folder.glob("bundle-*"):
            _end_container(bundle)
        for folder in self._folder.glob("debootstrap-*"):
            _remove(folder)
        _unmount_below(self._folder)

    def _buildah(self, *arguments: str | Path, timeout_s: float = _CALL_S, folder: Path | None = None) -> None:
        stores = ("--root", self._folder / "storage", "--runroot", self._folder / "run")
        run([program("buildah"), *stores, *arguments], self._log, timeout_s, folder)

    def _output_of(self, *arguments: str | Path) -> str:
        stores = ("--root", self._folder / "storage", "--runroot", self._folder / "run")
        done = subprocess.run(
            [program("buildah"), *stores, *arguments], check=False, capture_output=True, text=True, timeout=_CALL_S
        )
        if done.returncode:
            msg = f"buildah {arguments[0]}: {done.stderr.strip()}"
            raise ImageError(msg)
        return done.stdout.strip()

    def ensure_base(self) -> None:
        """Pull or build the base image unless the store has it. Raises Unavailable."""
        with suppress(ImageError):
            self._output_of("inspect", "--type", "image", BASE)
            return
        with suppress(ImageError):
            self._buildah("pull", "--quiet", BASE, timeout_s=_PULL_S)
            return
        try:
            self._bootstrap()
        except ImageError as error:
            msg = f"neither {BASE} nor Debian's packages can be fetched: {error}"
            raise Unavailable(msg) from error

    def _bootstrap(self) -> None:
        root = Path(tempfile.mkdtemp(dir=self._folder, prefix="debootstrap-"))
        try:
            variant = ("--variant=minbase", f"--include={_PACKAGES}")
            command: list[str | Path] = [program("debootstrap"), *variant, _DEBIAN, root, *_mirror()]
            run(command, self._log, _BASE_S)
            root.chmod(0o755)
            # As in the image of that name: no manuals, one python3, and pip is allowed to install.
            excludes = "".join(f"path-exclude /usr/share/{name}/*\n" for name in ("doc", "man", "locale", "info"))
            (root / "etc/dpkg/dpkg.cfg.d/docker").write_text(excludes, "utf-8")
            for marked in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
                marked.unlink()
            for name in ("python", "python3"):
                (root / "usr/local/bin" / name).symlink_to("/usr/bin/python3.11")
            container = self._output_of("from", "scratch")
            self._buildah("add", "--quiet", container, root, "/")
            path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
            self._buildah("config", "--env", path, "--env", "LANG=C.UTF-8", container)
            self._buildah("commit", "--quiet", "--rm", container, BASE)
        finally:
            _remove(root)

    def build(self, name: str, timeout_s: float) -> None:
        """Build an image of `deploy/images`. Raises ImageError, or Unavailable if the network does not answer."""
        self.ensure_base()
        arguments = ["bud", "--isolation", "chroot", "--format", "docker", "--layers", "--pull-never"]
        arguments += ["--network", "host", *registry_arguments(os.environ)]
        arguments += ["--file", f"deploy/images/{name}.Dockerfile"]
        try:
            # The first stage also has a name, so its layers stay when those of older builds are removed.
            for stage in (["--target", "build", "--tag", tag_of(f"{name}-build")], ["--tag", tag_of(name)]):
                self._buildah(*arguments, *stage, ".", timeout_s=timeout_s, folder=ROOT)
        except TooSlowError:
            raise
        except ImageError as error:
            unreachable = _unreachable_source(os.environ)
            if unreachable is None:
                raise
            msg = f"{unreachable} does not answer, and the layers that need it are not in the cache"
            raise Unavailable(msg) from error

    def prune(self) -> None:
        """Remove every layer that no image uses. Call it after all images are built."""
        with suppress(ImageError):
            self._buildah("rmi", "--prune", timeout_s=_BASE_S)

    @contextmanager
    def container(self, name: str) -> Iterator[Container]:
        """Mount a built image's file system."""
        config = json.loads(self._output_of("inspect", "--type", "image", tag_of(name)))["OCIv1"]["config"]
        container = self._output_of("from", "--pull-never", tag_of(name))
        try:
            yield Container(
                Path(self._output_of("mount", container)),
                config["User"],
                tuple(config["Env"]),
                tuple(config["Entrypoint"]),
                config["WorkingDir"],
            )
        finally:
            self._buildah("umount", container)
            self._buildah("rm", container)

    def run(self, spec: Mapping[str, object], timeout_s: float) -> str:
        """Run a container until it exits, and return its output. Raises ImageError if it fails."""
        bundle = Path(tempfile.mkdtemp(dir=self._folder, prefix="bundle-"))
        try:
            (bundle / "config.json").write_text(json.dumps(spec), "utf-8")
            options = ("--root", bundle / "state", "run", "--bundle", bundle)
            run([program("runc"), *options, uuid.uuid4().hex[:12]], bundle / "output", timeout_s)
            return (bundle / "output").read_text("utf-8", "replace")
        finally:
            _end_container(bundle)


def require_engine(*, install: bool) -> None:
    """Raise Unavailable if images cannot be built; with ``install``, try to install missing Debian packages first."""
    if sys.platform != "linux" or os.geteuid() != 0:
        msg = "building images without a daemon needs root on Linux"
        raise Unavailable(msg)
    missing = [name for name in PROGRAMS if find(name) is None]
    if missing and install and shutil.which("apt-get") is not None:
        environ = {"DEBIAN_FRONTEND": "noninteractive"}
        with tempfile.TemporaryDirectory() as folder, suppress(ImageError):
            log = Path(folder) / "log"
            run(["apt-get", "update"], log, _INSTALL_S, environ=environ)
            run(["apt-get", "install", "--yes", "--no-install-recommends", *missing], log, _INSTALL_S, environ=environ)
        missing = [name for name in PROGRAMS if find(name) is None]
    if missing:
        msg = f"{', '.join(missing)} missing: apt-get install --no-install-recommends {' '.join(PROGRAMS)}"
        raise Unavailable(msg)
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        msg = "this root user may not create namespaces"
        raise Unavailable(msg)


def tag_of(name: str) -> str:
    """An image's name in the store."""
    return f"localhost/kafka-delta-express/{name}:latest"


def store_folder() -> Path:
    return cache_folder() / "images"


def find(name: str) -> str | None:
    """The path of a program; also searches the folders that only root has on its PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def program(name: str) -> str:
    """The path of a program. Raises Unavailable if it is missing."""
    path = find(name)
    if path is None:
        msg = f"{name} is missing"
        raise Unavailable(msg)
    return path


def run(
    arguments: Sequence[str | Path],
    log: Path,
    timeout_s: float,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Run a program until it exits, and end its children with it. Raises ImageError with the end of its output."""
    child = processes.start([str(argument) for argument in arguments], log, environ, folder)
    code = None
    try:
        code = child.process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        msg = f"{Path(arguments[0]).name} took longer than {timeout_s:.0f} s; the end of its log:\n{child.log_tail()}"
        raise TooSlowError(msg) from error
    finally:
        if code is None:  # timed out, or this process is stopping
            child.signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(10)
            with suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
    if code:
        msg = f"{Path(arguments[0]).name} ended with code {code}; the end of its log:\n{child.log_tail()}"
        raise ImageError(msg)


def registry_arguments(environ: Mapping[str, str], certificates: Path = CERTIFICATES) -> list[str]:
    """Build arguments with this machine's registry settings (rule 3)."""
    settings = pip_settings(environ)
    if "KDE_MAVEN_URL" in environ:
        settings["KDE_MAVEN_URL"] = environ["KDE_MAVEN_URL"]
    arguments: list[str] = []
    if certificates.exists():
        arguments += ["--volume", f"{certificates}:{CERTIFICATES}:ro"]
        settings |= dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE"), str(CERTIFICATES))
    for key, value in sorted(settings.items()):
        arguments += ["--build-arg", f"{key}={value}"]
    return arguments


def pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Index settings from pip's config files and the environment, as environment variables."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=False, capture_output=True, text=True, env=dict(environ)
    )
    settings: dict[str, str] = {}
    for line in done.stdout.splitlines():  # global.index-url='https://…'; pip lists the environment's settings first
        key, _, value = line.partition("=")
        name = _PIP.get(key.rpartition(".")[2])
        if name is not None:
            settings.setdefault(name, value.strip("'\""))
    return settings | {name: environ[name] for name in _PIP.values() if name in environ}


def process_spec(
    template: Mapping[str, Any],
    container: Container,
    arguments: Sequence[str],
    *,
    user: str,
    environ: Mapping[str, str],
    tmpfs: Sequence[str],
    mounts: Mapping[Path, str],
) -> dict[str, object]:
    """A runc spec with no capabilities, no new privileges, a read-only root and the host's network.

    ``template`` is the output of `runc spec`, ``tmpfs`` has compose's entries, ``mounts`` maps sources to read-only
    targets.
    """
    uid, _, gid = user.partition(":")
    kept = [mount for mount in template["mounts"] if mount["type"] != "cgroup"]
    process = {
        "terminal": False,
        "user": {"uid": int(uid), "gid": int(gid)},
        "args": [*container.entrypoint, *arguments],
        "env": [*container.environ, *(f"{key}={value}" for key, value in environ.items())],
        "cwd": container.folder,
        "noNewPrivileges": True,
        "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")},
    }
    linux = {key: value for key, value in template["linux"].items() if key != "resources"}
    own = ("pid", "ipc", "mount")
    linux["namespaces"] = [entry for entry in template["linux"]["namespaces"] if entry["type"] in own]
    return {
        "ociVersion": template["ociVersion"],
        "process": process,
        "root": {"path": str(container.root), "readonly": True},
        "mounts": [
            *kept,
            *map(tmpfs_mount, tmpfs),
            *(
                {"destination": target, "type": "bind", "source": str(source), "options": ["rbind", "ro"]}
                for source, target in mounts.items()
            ),
        ],
        "linux": linux,
    }


def tmpfs_mount(entry: str) -> dict[str, object]:
    """A tmpfs mount as Docker makes it from compose's ``/tmp:size=2g,mode=1777``: noexec, nosuid, nodev by default."""
    target, _, text = entry.partition(":")
    options = [option for option in text.split(",") if option]
    defaults = [name for name in ("noexec", "nosuid", "nodev") if name.removeprefix("no") not in options]
    return {
        "destination": target,
        "type": "tmpfs",
        "source": "tmpfs",
        "options": [*defaults, *(option for option in options if option not in {"exec", "suid", "dev"})],
    }


def runc_template(folder: Path) -> dict[str, Any]:
    """The output of `runc spec`."""
    subprocess.run([program("runc"), "spec"], check=True, cwd=folder, capture_output=True)
    template: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return template


def _mirror() -> list[str]:
    """This machine's package mirror, if it runs the same Debian release."""
    if shutil.which("apt-get") is None:
        return []
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE) $(CODENAME)"], check=False, capture_output=True, text=True
    )
    sites = [line.split()[0] for line in done.stdout.splitlines() if line.endswith(f" {_DEBIAN}")]
    return sites[:1]


def _unreachable_source(environ: Mapping[str, str]) -> str | None:
    """The host of the first source that a build needs and that does not answer, or None."""
    index = pip_settings(environ).get("PIP_INDEX_URL", "https://pypi.org/simple")
    mirror = (_mirror() or ["http://deb.debian.org/debian"])[0]
    for url in (mirror, index, environ.get("KDE_MAVEN_URL", MAVEN_URL)):
        try:
            with urllib.request.urlopen(url, timeout=15):  # noqa: S310 - a URL from this machine's settings
                continue
        except urllib.error.HTTPError:
            continue  # an HTTP error is an answer
        except (OSError, ValueError):
            return url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    return None


def _end_container(bundle: Path) -> None:
    """Delete a container's leftovers and its bundle folder."""
    state = bundle / "state"
    for container in state.iterdir() if state.is_dir() else ():
        command = [program("runc"), "--root", str(state), "delete", "--force", container.name]
        subprocess.run(command, check=False, capture_output=True)
    _remove(bundle)


def _remove(folder: Path) -> None:
    """Unmount everything below a folder, then remove it: removal across a mount would delete the files behind it."""
    _unmount_below(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _unmount_below(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text("utf-8").splitlines()]
    for target in sorted((mount for mount in mounts if mount.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", target], check=False, capture_output=True)
