"""An S3 server over TLS that checks who asks and what they may: each way of users to name themselves, and the policies
of deploy/aws. The loader's Spark gets the same, and its secrets are on no command line.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from common.cli import run
from common.errors import StoreRefusedError
from common.storage.chunks import ByteChunks
from common.storage.store import FsspecStore, prove_exclusive_create, prove_writable
from devservices.kafka import KafkaCluster
from devservices.s3_rights import GuardedS3, Keys, running_guarded_s3
from stage_writer.__main__ import app as writer
from tests.integration.conftest import Programs
from tests.producing import produce

pytestmark = pytest.mark.s3

POLICIES = Path(__file__).parents[2] / "deploy" / "aws"
ROWS = 20


@dataclass(frozen=True, slots=True)
class World:
    """The server, and who it knows."""

    s3: GuardedS3
    writer: Keys
    loader: Keys
    role: str
    token: Path
    profiles: Path

    @property
    def reach(self) -> dict[str, object]:
        client = {"verify": str(self.s3.authority), "region_name": self.s3.server.region}
        return {"endpoint_url": self.s3.server.endpoint_url, "client_kwargs": client}

    @property
    def environ(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.s3.server.endpoint_url,
            "AWS_DEFAULT_REGION": self.s3.server.region,
            "AWS_CA_BUNDLE": str(self.s3.authority),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.profiles),
        }

    def options(self, keys: Keys) -> dict[str, object]:
        return {"key": keys.access_key, "secret": keys.secret_key, **self.reach}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """It checks nothing until a test asks for `guarded`: moto's STS cannot be asked afterward."""
    folder = tmp_path_factory.mktemp("guarded")
    with running_guarded_s3(folder) as s3:
        policy = (POLICIES / "writer-policy.json").read_text("utf-8")
        keys, role = s3.user("writer", policy), s3.role("writer", policy)
        loader = s3.user("loader", (POLICIES / "loader-policy.json").read_text("utf-8"))
        token, profiles = folder / "token", folder / "credentials"
        token.write_text("what the platform says of this pod", "utf-8")
        own = f"[own]\naws_access_key_id={keys.access_key}\naws_secret_access_key={keys.secret_key}\n"
        web = f"[web]\nrole_arn={role}\nweb_identity_token_file={token}\n"
        profiles.write_text(f"{own}[assumed]\nrole_arn={role}\nsource_profile=own\n{web}", "utf-8")
        yield World(s3, keys, loader, role, token, profiles)


@pytest.fixture(scope="module")
def guarded(world: World) -> World:
    """The same, and each call needs a signature and a right."""
    world.s3.enforce()
    return world


@pytest.fixture(autouse=True)
def _no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken from the machine that the test runs on."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def takes_a_chain(**options: object) -> bool:
    prove_exclusive_create(FsspecStore("s3://lake/stage", options))
    return True


def test_without_a_name_nothing_is_done(world: World) -> None:
    with pytest.raises(StoreRefusedError, match="NoCredentialsError") as caught:
        takes_a_chain(**world.reach)
    assert "check the credentials in stage.storage_options, or in the environment" in caught.value.remedy


def test_role_is_assumed_by_web_identity_or_profile(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in world.environ.items():
        monkeypatch.setenv(name, value)
    assert takes_a_chain(profile="assumed")
    assert takes_a_chain(profile="web")
    monkeypatch.setenv("AWS_ROLE_ARN", world.role)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(world.token))
    assert takes_a_chain()


def test_keys_come_by_options_a_profile_or_the_environment(guarded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert takes_a_chain(**guarded.options(guarded.writer))
    for name, value in guarded.environ.items():
        monkeypatch.setenv(name, value)
    assert takes_a_chain(profile="own")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", guarded.writer.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", guarded.writer.secret_key)
    assert takes_a_chain()


def test_writer_policy_allows_only_new_files_in_tables(guarded: World) -> None:
    lake = FsspecStore("s3://lake", guarded.options(guarded.writer))
    lake.upload("tables/orders/new.parquet", ByteChunks([b"rows"]))
    log = "tables/orders/_delta_log/00000000000000000000.json"
    loader = FsspecStore("s3://lake", guarded.options(guarded.loader))
    loader.write(log, b"{}")
    assert lake.read(log) == b"{}"
    loader.delete([log])
    forbidden: list[Callable[[], object]] = [
        partial(lake.read, "tables/orders/new.parquet"),
        partial(lake.delete, ["tables/orders/new.parquet"]),
        partial(lake.write, log, b"{}"),
        partial(lake.write, "elsewhere/new.parquet", b"rows"),
        partial(lake.read, "elsewhere/new.parquet"),
    ]
    for call in forbidden:
        with pytest.raises(StoreRefusedError):
            call()
    with pytest.raises(StoreRefusedError, match="may not create"):
        prove_writable(FsspecStore("s3://lake/elsewhere", guarded.options(guarded.writer)))
    prove_writable(FsspecStore("s3://lake/tables/orders", guarded.options(guarded.writer)))
    assert [item.path for item in loader.list("tables/orders")] == ["tables/orders/new.parquet"]
    loader.delete(["tables/orders/new.parquet"])


@pytest.fixture
def config_of(
    guarded: World, kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs
) -> Callable[[Keys], Path]:
    """Write a config for one topic; the same for each of who has keys."""
    topic = new_topic()
    produce(kafka.bootstrap_servers, topic, *(json.dumps({"id": index}) for index in range(ROWS)))

    def config_of(keys: Keys) -> Path:
        settings = {
            "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
            "stage": {"url": "s3://lake/stage", "storage_options": guarded.options(keys)},
            "writer": {"group_id": topic, "http": None, "workers": 1},
            "loader": {"http": None, "schedule": "1s", "spark": {"spark.master": "local[2]"}},
            "streams": [
                {"app_id": topic, "topics": [topic], "table": f"s3://lake/tables/{topic}", "columns": "id BIGINT"}
            ],
        }
        return programs.config(settings, f"{keys.access_key}.yaml")

    return config_of


@pytest.mark.broker
def test_wrong_s3_key_is_reported_and_not_shown(
    guarded: World, config_of: Callable[[Keys], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    config = config_of(Keys(guarded.writer.access_key, "wrong-secret"))
    assert run(writer, ["check", str(config)]) == 2
    error = capfd.readouterr().err
    assert "s3://lake/stage" in error
    assert "stage.storage_options" in error
    assert "wrong-secret" not in error


@pytest.mark.broker
@pytest.mark.spark
def test_both_services_work_with_the_rights_of_their_policies(
    guarded: World, config_of: Callable[[Keys], Path], programs: Programs
) -> None:
    config = config_of(guarded.writer)
    programs.succeed("stage-writer", "check", config)
    output = programs.succeed("stage-writer", "run", config, "--until-caught-up")
    child = programs.start("delta-loader", "run", config_of(guarded.loader))
    child.wait_until(lambda: f'"rows": {ROWS}' in child.log.read_text("utf-8"), "a load")
    lines = command_lines(child.process.pid)
    assert child.stop() == 0
    output += child.log.read_text("utf-8")
    assert any("org.apache.spark.deploy.SparkSubmit" in line for line in lines)
    for keys in (guarded.writer, guarded.loader):
        assert keys.secret_key not in output + "".join(lines)


def command_lines(session: int) -> set[str]:
    """What everybody on this machine sees of a service and what it has started."""
    lines: set[str] = set()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and os.getsid(int(folder.name)) == session:
                lines.add((folder / "cmdline").read_bytes().decode())
        except OSError:  # it has just ended
            continue
    return lines
