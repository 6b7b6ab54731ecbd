"""`deploy/` checked by the tools that own its formats.

Quick tools are fetched here; slow ones are skipped unless `make deploy-check` has built them.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from devservices import deploy_tools

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("base", "overlays/example")
CRDS = (deploy_tools.KEDA, deploy_tools.KEDA_AUTHENTICATION)

Manifest = dict[str, object]


def require(*wanted: deploy_tools.Tool | deploy_tools.Source) -> None:
    """Skips the test if a tool is missing, unless DEPLOY_TOOLS=required."""
    absent = [
        tool.name if isinstance(tool, deploy_tools.Tool) else tool[2]
        for tool in wanted
        if not deploy_tools.ensure_quickly(tool)
    ]
    if absent and os.environ.get("DEPLOY_TOOLS") != "required":
        pytest.skip(f"{', '.join(absent)}: `make deploy-check` builds them")
    assert not absent


@pytest.fixture
def kubernetes() -> None:
    require(deploy_tools.KUSTOMIZE, deploy_tools.KUBECTL_VALIDATE, *CRDS)


def call(*command: str | Path | None, expected: int = 0) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


def rendered(overlay: str) -> str:
    return call(deploy_tools.KUSTOMIZE.program, "build", DEPLOY / "kubernetes" / overlay)


def validate(text: str, folder: Path, expected: int = 0) -> str:
    crds = folder / "crds"
    crds.mkdir(exist_ok=True)
    for crd in CRDS:
        shutil.copy(deploy_tools.file_of(crd), crds)
    manifests = folder / "manifests.yaml"
    manifests.write_text(text, "utf-8")
    program = deploy_tools.KUBECTL_VALIDATE.program
    return call(program, manifests, "--local-crds", crds, "--version", "1.30", expected=expected)


@pytest.mark.usefixtures("kubernetes")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_are_valid_for_kubernetes(overlay: str, tmp_path: Path) -> None:
    validate(rendered(overlay), tmp_path)


@pytest.mark.usefixtures("kubernetes")
def test_cpu_autoscaler_fits_the_base(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    mine = tmp_path / "kubernetes/overlays/cpu"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(
        "kind: Kustomization\nresources: [../../base]\ncomponents: [../../components/cpu]\n"
    )
    text = call(deploy_tools.KUSTOMIZE.program, "build", mine)
    assert "HorizontalPodAutoscaler" in text
    validate(text, tmp_path)


@pytest.mark.usefixtures("kubernetes")
def test_invalid_manifests_fail_validation(tmp_path: Path) -> None:
    text = rendered("overlays/example")
    validate(text.replace("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: often"), tmp_path, expected=1)
    validate(text.replace("maxReplicaCount: 8", "maxReplicaCount: many"), tmp_path, expected=1)


@pytest.mark.usefixtures("kubernetes")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_container_is_confined_and_bounded(overlay: str) -> None:
    manifests: list[Manifest] = list(yaml.safe_load_all(rendered(overlay)))
    deployments = [manifest for manifest in manifests if manifest["kind"] == "Deployment"]
    assert len(deployments) == 2
    for deployment in deployments:
        pod = deployment["spec"]["template"]["spec"]  # type: ignore[index]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            assert container["livenessProbe"]
            assert container["readinessProbe"]
            assert container["image"].rpartition(":")[2] == "0.1.0"
        # The config's name ends in a digest, so that a change of it rolls the pods.
        (config,) = (volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume)
        assert config.startswith("pipeline-")
    kinds = {manifest["kind"] for manifest in manifests}
    assert {"PodDisruptionBudget", "NetworkPolicy", "ServiceAccount", "Service", "ConfigMap"} <= kinds
    assert ("ScaledObject" in kinds) == (overlay != "base")


def test_alert_rules_are_valid_and_each_fires() -> None:
    require(deploy_tools.PROMTOOL)
    call(deploy_tools.PROMTOOL.program, "check", "rules", "--lint-fatal", DEPLOY / "monitoring/alerts.yaml")
    call(deploy_tools.PROMTOOL.program, "test", "rules", DEPLOY / "monitoring/alerts_test.yaml")


def test_dockerfiles_have_no_findings() -> None:
    call(Path(sys.executable).parent / "hadolint", *sorted((DEPLOY / "images").glob("*.Dockerfile")))


def test_compose_file_is_valid() -> None:
    require(deploy_tools.COMPOSE)
    schema = json.loads(deploy_tools.file_of(deploy_tools.COMPOSE).read_text("utf-8"))
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text("utf-8"))
    jsonschema.Draft7Validator(schema).validate(compose)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate({**compose, "service": {}})
    published = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_units_are_valid_for_systemd(tmp_path: Path) -> None:
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        # The program need not be installed here.
        unit = tmp_path / path.name
        unit.write_text(path.read_text("utf-8").replace("/opt/kafka-delta-express/bin/" + path.stem, "/bin/true"))
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
        assert (done.returncode, path.name in done.stderr) == (0, False), done.stderr
