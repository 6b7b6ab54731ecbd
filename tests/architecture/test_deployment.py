"""The claims of `deploy/`: configs load, metrics exist, alerts are explained, images are confined."""

import ast
import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from common.http.server import HttpServer, Routes, json_page
from common.metrics import ALL_METRICS, MetricKind
from common.settings import load_settings
from delta_loader.spark.session import start_remedy
from devservices.dependency_bounds import INTERNALS_ARE_READ, bounded

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SECRETS = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION", "KAFKA_USERNAME", "KAFKA_PASSWORD",
)  # fmt: skip
IMAGES = ("stage-writer", "delta-loader")
SERIES = {
    f"{metric.name}{suffix}"
    for metric in ALL_METRICS
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",))
}
METRIC = re.compile(r"\b(?:stage_writer|delta_loader)_\w+")


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "monitoring/alerts.yaml").read_text("utf-8"))["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def metrics_in(text: str) -> set[str]:
    return set(METRIC.findall(text))


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("pipeline.yaml")), ids=lambda path: path.parent.name)
def test_deployment_configs_load_and_serve_beyond_their_container(path: Path) -> None:
    settings = load_settings(path, dict.fromkeys(SECRETS, "x"))
    assert settings.writer.http == "0.0.0.0:8080"
    assert settings.loader.http == "0.0.0.0:8081"


def test_autoscaling_by_lag_matches_the_writer_s_group_and_topic() -> None:
    scaled, authentication = yaml.safe_load_all(
        (DEPLOY / "kubernetes/components/keda/scaledobject.yaml").read_text("utf-8")
    )
    (trigger,) = scaled["spec"]["triggers"]
    settings = load_settings(DEPLOY / "kubernetes/overlays/example/pipeline.yaml", {name: name for name in SECRETS})
    assert settings.writer.report_positions
    assert trigger["metadata"]["consumerGroup"] == settings.writer.group_id
    assert settings.stream_of(trigger["metadata"]["topic"]) is not None
    assert trigger["metadata"]["bootstrapServers"] == settings.kafka["bootstrap.servers"]
    assert trigger["metadata"]["sasl"] == str(settings.kafka["sasl.mechanism"]).lower().replace("-sha-", "_sha")
    assert (trigger["metadata"]["tls"] == "enable") == str(settings.kafka["security.protocol"]).endswith("SSL")
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    given = {parameter["parameter"]: parameter["key"] for parameter in authentication["spec"]["secretTargetRef"]}
    assert given == {key: settings.kafka[f"sasl.{key}"] for key in ("username", "password")}


def test_alerts_and_dashboard_name_existing_metrics() -> None:
    dashboard = json.loads((DEPLOY / "monitoring/dashboard.json").read_text("utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 20
    for text in (*expressions, *(alert["expr"] for alert in alerts())):
        assert metrics_in(text) <= SERIES, text
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_each_alert_has_a_runbook_section_and_a_test_that_fires_it() -> None:
    names = [alert["alert"] for alert in alerts()]
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text("utf-8"), re.MULTILINE)
    assert sections == names
    tests = yaml.safe_load((DEPLOY / "monitoring/alerts_test.yaml").read_text("utf-8"))["tests"]
    fired = [rule["alertname"] for test in tests for rule in test["alert_rule_test"] if rule["exp_alerts"]]
    assert sorted(fired) == sorted(names)
    for alert in alerts():
        assert alert["annotations"]["runbook_url"].endswith(f"#{alert['alert'].lower()}")


def test_each_reason_for_holding_a_partition_is_in_the_runbook() -> None:
    runbook = (ROOT / "docs/runbook.md").read_text("utf-8")
    calls = [
        node
        for module in (ROOT / "delta_loader").rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Held"
    ]
    reasons = {str(call.args[0].value) for call in calls if call.args and isinstance(call.args[0], ast.Constant)}
    assert {"gap", "missing_file"} <= reasons
    rows = {f"`{'replacement_…' if reason.startswith('replacement_') else reason}`" for reason in reasons}
    assert {row for row in rows if row not in runbook} == set()


@pytest.mark.parametrize("image", IMAGES)
def test_image_has_exactly_the_locked_packages_of_its_extras(image: str) -> None:
    pinned = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)
    everything = dict(pinned.findall((ROOT / "requirements.lock").read_text("utf-8")))
    mine = dict(pinned.findall((DEPLOY / f"images/{image}.lock").read_text("utf-8")))
    assert {name: everything.get(name) for name in mine} == mine
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for text in (*project["dependencies"], *project["optional-dependencies"][image]):
        requirement = Requirement(text)
        assert requirement.specifier.contains(mine[requirement.name], prereleases=True), text
    assert ("pyspark" in mine) == (image == "delta-loader")


def test_packages_with_used_internals_have_an_upper_bound() -> None:
    requirements = [Requirement(text) for text in bounded()]
    assert {requirement.name for requirement in requirements} >= set(INTERNALS_ARE_READ)
    for requirement in requirements:
        assert {"<", ">="} == {specifier.operator for specifier in requirement.specifier}


@pytest.mark.parametrize(("image", "port"), [("stage-writer", 8080), ("delta-loader", 8081)])
def test_image_health_check_ignores_proxies(image: str, port: int) -> None:
    text = (DEPLOY / f"images/{image}.Dockerfile").read_text("utf-8")
    python, *arguments = json.loads(text.partition("HEALTHCHECK")[2].partition("CMD ")[2].partition("\n")[0])
    assert python == "python"
    server = HttpServer("127.0.0.1:0", Routes({"/version": json_page(200, {})}))

    def asking(served: int) -> list[str]:
        return [sys.executable, *(argument.replace(str(port), str(served)) for argument in arguments)]

    nowhere = "http://127.0.0.1:1"
    proxied = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), nowhere)
    try:
        assert subprocess.run(asking(server.port), env=proxied, check=False, timeout=120).returncode == 0
    finally:
        server.close()
    with socket.socket() as silent:  # holds a port, so that no other server answers there
        silent.bind(("127.0.0.1", 0))
        command = asking(silent.getsockname()[1])
        assert subprocess.run(command, env={}, check=False, timeout=120, capture_output=True).returncode != 0


@pytest.mark.parametrize("image", IMAGES)
def test_image_runs_unprivileged_and_has_a_health_check(image: str) -> None:
    text = (DEPLOY / f"images/{image}.Dockerfile").read_text("utf-8")
    final = text.rpartition("\nFROM ")[2]
    assert "USER 10001:10001" in final
    assert "HEALTHCHECK" in final
    assert ":latest" not in text
    assert all(":" in line.split()[1] for line in text.splitlines() if line.startswith("FROM "))
    assert ("openjdk" in text) == (image == "delta-loader")
    assert "jdk-headless" not in final


@pytest.mark.parametrize("image", IMAGES)
def test_image_copies_files_in_the_build_context_and_runs_an_executable(image: str) -> None:
    text = (DEPLOY / f"images/{image}.Dockerfile").read_text("utf-8")
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert any(source == path or source.startswith(f"{path}/") for path in allowed), source
    assert os.access(DEPLOY / "images/entrypoint.sh", os.X_OK)


@pytest.mark.parametrize("image", IMAGES)
def test_image_build_imports_the_installed_package_not_the_sources(image: str) -> None:
    text = (DEPLOY / f"images/{image}.Dockerfile").read_text("utf-8")
    assert "python -c" not in text  # it would import from the folder in which it runs


@pytest.mark.parametrize("image", IMAGES)
def test_image_user_has_a_name_and_a_home_for_java(image: str) -> None:
    final = (DEPLOY / f"images/{image}.Dockerfile").read_text("utf-8").rpartition("\nFROM ")[2]
    assert "useradd --uid 10001 " in final
    assert "--home-dir /tmp" in final
    assert "HOME=/tmp" in final


@pytest.mark.parametrize(("uid", "message"), [(os.getuid(), "Java 17"), (2**31 - 7, "no entry in /etc/passwd")])
def test_start_remedy_names_a_user_without_a_name(uid: int, message: str) -> None:
    assert message in start_remedy(uid)


def test_compose_volume_holds_kafka_s_log_dirs() -> None:
    kafka = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text("utf-8"))["services"]["kafka"]
    (volume,) = kafka["volumes"]
    assert volume.partition(":")[2] == kafka["environment"]["KAFKA_LOG_DIRS"]


def test_systemd_units_restart_except_on_a_config_error() -> None:
    for name in IMAGES:
        unit = (DEPLOY / f"systemd/{name}.service").read_text("utf-8")
        assert "RestartPreventExitStatus=2\n" in unit
        assert f"/bin/{name} run " in unit
        assert "DynamicUser=yes\n" in unit
