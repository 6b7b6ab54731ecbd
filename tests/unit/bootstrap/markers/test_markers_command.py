"""`bootstrap markers` on whole and broken chains."""

import json
from pathlib import Path

import pytest

from bootstrap.__main__ import app
from common.cli import run
from common.storage.store import FsspecStore
from tests.builders import config_file
from tests.fakes.markers import by_hand, chain_of, flush, put
from tests.fakes.staging import Staging


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    """Two partitions of real files: the first has a whole chain, the second only a marker made by hand."""
    staging_area = Staging.below(tmp_path)
    staging_area.flush(0, 0, 10, days=("2026-01-01", "2026-01-02"), dead=(3,))
    staging_area.flush(0, 10, 25)
    staging_area.touch(1, 41)
    return staging_area


@pytest.fixture
def config(staging: Staging, tmp_path: Path) -> str:
    return str(config_file(tmp_path, {"table": staging.table}))


def call(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run(app, ["markers", *arguments])
    captured = capfd.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out + captured.err


def test_ls_has_a_line_for_each_chain(config: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, text = call(capfd, "ls", config)
    lines = [line.split() for line in text.splitlines()]
    assert code == 0
    assert [line[:5] for line in lines[1:]] == [["orders/0", "2", "0", "25", "–"], ["orders/1", "1", "41", "42", "–"]]
    assert "\x1b" not in text


@pytest.mark.parametrize("name", ["done/orders/41.done", "done/orders/00/41.done", "done/orders/0/41.DONE"])
def test_name_that_is_not_a_marker_s_is_reported(
    name: str, staging: Staging, config: str, capfd: pytest.CaptureFixture[str]
) -> None:
    store = staging.store(staging.stage_url)
    store.write("done/others/41.done", b"")  # of another config
    store.write(name, b"")
    code, text = call(capfd, "verify", config)
    assert (code, f"warning: {name} is not a marker" in text) == (3, True)
    code, text = call(capfd, "ls", config, "--json")
    (problem,) = json.loads(text)["problems"]
    assert (code, problem.startswith(f"{name} is not a marker")) == (0, True)


def test_emptied_marker_is_a_fault(staging: Staging, config: str, capfd: pytest.CaptureFixture[str]) -> None:
    staging.store(staging.stage_url).write("done/orders/0/00000000000000000000.done", b"")
    code, text = call(capfd, "verify", config)
    assert (code, "it is empty, but the marker at 10 continues" in text) == (3, True)
    _, text = call(capfd, "show", config, "--topic", "orders", "--partition", "0", "--at", "0")
    assert "it is empty, but the marker at 10 continues" in text


def test_ls_of_a_partition_has_a_line_for_each_marker(config: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, text = call(capfd, "ls", config, "--topic", "orders", "--partition", "0", "--json")
    (chain,) = json.loads(text)["chains"]
    assert (code, chain["rows"], chain["dead_letters"], chain["files"]) == (0, 24, 1, 4)
    assert [(marker["start"], marker["end"], marker["origin"], marker["loaded"]) for marker in chain["chain"]] == [
        (0, 10, "flush", False),
        (10, 25, "flush", False),
    ]
    _, text = call(capfd, "ls", config, "--topic", "orders", "--partition", "0")
    assert text.splitlines()[2].split()[:5] == ["0", "10", "10", "9", "1"]


@pytest.mark.parametrize(
    "which", [["--topic", "orders", "--partition", "0", "--at", "7"], ["done/orders/0/00000000000000000000.done"]]
)
def test_show_decodes_the_marker_of_an_offset_or_a_path(
    which: list[str], config: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, text = call(capfd, "show", config, *which)
    assert code == 0
    assert "[0, 10), 10 positions" in text
    assert "1 not_json" in text
    _, text = call(capfd, "show", config, *which, "--json")
    assert json.loads(text)["manifest"]["dead_letters"] == {"not_json": 1}


@pytest.mark.parametrize(
    "arguments", [[], ["done/orders/x"], ["--topic", "orders"], ["done/orders/0/99.done"], ["--topic", "nothing"]]
)
def test_show_of_a_missing_marker_exits_with_2(
    arguments: list[str], config: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, text = call(capfd, "show", config, *arguments)
    assert code == 2
    assert text.startswith("error: ")


def test_whole_stage_verifies(config: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(capfd, "verify", config) == (0, "2 chains and 4 data files: no fault\n")


def test_verify_names_missing_truncated_and_replaced_files(
    staging: Staging, config: str, capfd: pytest.CaptureFixture[str]
) -> None:
    files = sorted(Path(staging.table).rglob("*.parquet"))
    gone, cut, other = files[0], files[1], files[2]
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-10])
    assert len(files) == 3
    code, text = call(capfd, "verify", config, "--json")
    assert code == 3
    assert {finding["kind"] for finding in json.loads(text)["findings"]} == {"file_gone", "file_broken"}
    other.write_bytes(Path(staging.dead_letters).rglob("*.parquet").__next__().read_bytes())
    code, text = call(capfd, "verify", config, "--json")
    kinds = {finding["kind"] for finding in json.loads(text)["findings"]}
    assert {"size", "rows"} <= kinds
    _, text = call(capfd, "verify", config)
    assert f"bootstrap rewind {config} --topic orders --partition 0 --to" in text
    assert call(capfd, "verify", config, "--no-files") == (0, "2 chains and 0 data files: no fault\n")


def test_verify_names_gaps_strays_and_unreadable_markers(
    staging: Staging, config: str, capfd: pytest.CaptureFixture[str]
) -> None:
    store = FsspecStore(staging.stage_url)
    put(store, flush(30, 40, 25), *chain_of(50, 60, 70), by_hand(55), flush(70, 80, 12))
    store.write("done/orders/0/90.done", b"{")
    code, text = call(capfd, "verify", config, "--json", "--no-files")
    findings = [(finding["severity"], finding["kind"]) for finding in json.loads(text)["findings"]]
    assert code == 3
    assert sorted(findings) == [
        ("fault", "gap"),
        ("fault", "gap"),
        ("fault", "unreadable"),
        ("noted", "link"),
        ("noted", "stray"),
    ]
    _, text = call(capfd, "verify", config, "--no-files")
    assert "[25, 30)" in text
