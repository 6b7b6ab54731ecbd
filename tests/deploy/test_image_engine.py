"""How containers are confined when images are tried, and which registries a build is given."""

import os
import sys
from pathlib import Path

import pytest

from devservices import image_engine, images
from devservices.image_engine import (
    Container,
    ImageError,
    TooSlowError,
    Unavailable,
    pip_settings,
    process_spec,
    registry_arguments,
)

TMP = "/tmp"  # noqa: S108 - a container's
TEMPLATE = {
    "ociVersion": "1.0.2",
    "process": {"capabilities": {"bounding": ["CAP_KILL"]}, "noNewPrivileges": False},
    "root": {"readonly": False},
    "mounts": [{"destination": "/proc", "type": "proc"}, {"destination": "/sys/fs/cgroup", "type": "cgroup"}],
    "linux": {"resources": {}, "namespaces": [{"type": "pid"}, {"type": "network"}, {"type": "mount"}]},
}


def test_container_is_confined_as_in_compose() -> None:
    container = Container(Path("/image"), "10001:10001", ("HOME=/tmp",), ("tini", "--", "delta-loader"), TMP)
    spec = process_spec(
        TEMPLATE,
        container,
        ["check", "/config"],
        user=container.user,
        environ={"AWS_REGION": "here"},
        tmpfs=images.confinement("delta-loader"),
        mounts={Path("/here"): "/config"},
    )
    assert spec["root"] == {"path": "/image", "readonly": True}
    process = spec["process"]
    assert isinstance(process, dict)
    assert process["user"] == {"uid": 10001, "gid": 10001}
    assert process["noNewPrivileges"] is True
    assert not any(process["capabilities"].values())
    assert process["args"] == ["tini", "--", "delta-loader", "check", "/config"]
    assert process["env"] == ["HOME=/tmp", "AWS_REGION=here"]
    mounts = {mount["destination"]: mount for mount in spec["mounts"]}  # type: ignore[attr-defined]
    assert mounts.keys() == {"/proc", TMP, "/config"}
    assert {"noexec", "nosuid", "nodev"} <= set(mounts[TMP]["options"])
    assert "ro" in mounts["/config"]["options"]
    assert spec["linux"] == {"namespaces": [{"type": "pid"}, {"type": "mount"}]}


@pytest.mark.parametrize("name", images.IMAGES)
def test_weaker_confinement_than_compose_s_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = images.confinement(name)
    assert entry.startswith(f"{TMP}:")
    compose = (image_engine.ROOT / "deploy/compose/compose.yaml").read_text("utf-8")
    (tmp_path / "deploy/compose").mkdir(parents=True)
    (tmp_path / "deploy/compose/compose.yaml").write_text(compose.replace("cap_drop: [ALL]", "cap_drop: []"), "utf-8")
    monkeypatch.setattr(images, "ROOT", tmp_path)
    with pytest.raises(ImageError, match="does not confine"):
        images.confinement(name)


def test_build_gets_the_machine_s_index_repository_and_certificates(tmp_path: Path) -> None:
    certificates = tmp_path / "ca.crt"
    certificates.touch()
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nindex-url = https://packages.example/simple\n", "utf-8")
    environ = {"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": str(settings), "PIP_TRUSTED_HOST": "packages.example"}
    assert pip_settings(environ) == {
        "PIP_INDEX_URL": "https://packages.example/simple",
        "PIP_TRUSTED_HOST": "packages.example",
    }
    given = registry_arguments(environ | {"KDE_MAVEN_URL": "https://maven.example"}, certificates)
    assert given[:2] == ["--volume", f"{certificates}:/etc/ssl/certs/ca-certificates.crt:ro"]
    assert set(given[3::2]) == {
        "KDE_MAVEN_URL=https://maven.example",
        "PIP_CERT=/etc/ssl/certs/ca-certificates.crt",
        "PIP_INDEX_URL=https://packages.example/simple",
        "PIP_TRUSTED_HOST=packages.example",
        "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
    }


@pytest.mark.parametrize("name", images.IMAGES)
def test_dockerfile_takes_every_build_argument(name: str) -> None:
    build = (image_engine.ROOT / f"deploy/images/{name}.Dockerfile").read_text("utf-8").partition("\n\n")[2]
    (taken,) = [line.split()[1:] for line in build.splitlines() if line.startswith("ARG ")]
    arguments = {
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_TRUSTED_HOST",
        "PIP_CERT",
        "SSL_CERT_FILE",
        "KDE_MAVEN_URL",
    }
    assert set(taken) == arguments
    assert "ARG" not in build.rpartition("\nFROM ")[2]  # the shipped stage has none of them


def test_missing_image_engine_is_a_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(Unavailable, match="root on Linux"):
        image_engine.require_engine(install=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(image_engine, "find", lambda _: None)
    with pytest.raises(Unavailable, match="buildah, runc, debootstrap missing: apt-get install"):
        image_engine.require_engine(install=False)


def test_failed_or_slow_command_ends_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"(?s)sh ended with code 3.*no such layer"):
        image_engine.run(["sh", "-c", "echo no such layer; exit 3"], tmp_path / "failed", 60)
    with pytest.raises(TooSlowError, match="took longer"):
        image_engine.run(["sleep", "600"], tmp_path / "late", 0.1)
