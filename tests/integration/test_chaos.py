"""A short form of ``make chaos``, and that its supervisor leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devservices import processes
from tests.chaos.plan import Kind
from tests.chaos.services import Service, Services
from tests.waiting import until

_MINUTES = 1.1
_PATIENCE_S = 840


@pytest.mark.broker
@pytest.mark.s3
@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("versitygw")
def test_every_record_is_there_once_after_a_minute_of_every_kind_of_fault(tmp_path: Path) -> None:
    log = tmp_path / "chaos.log"
    arguments = ["--minutes", str(_MINUTES), "--seed", "1", "--rate", "100"]
    child = processes.start([sys.executable, "-m", "tests.chaos", *arguments], log, {"TMPDIR": str(tmp_path)})
    try:
        code = child.process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        code = child.stop(600)
    output = log.read_text("utf-8")
    assert code == 0, output
    assert "every record once, values right, every acknowledged commit in the log" in output
    assert all(kind in output for kind in Kind)
    assert [path.name for path in tmp_path.iterdir()] == [log.name]
    assert not processes_that_know(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")
def test_services_are_started_again_and_leave_nothing_behind(tmp_path: Path) -> None:
    script = "import subprocess; subprocess.Popen(['tail', '-f', r'%s']).wait()"
    services = Services(tmp_path)
    command = [sys.executable, "-c", script % (tmp_path / "family-1.log")]
    family = Service("family", command, tmp_path)
    services.all.append(family)
    family.start()
    family.kill()

    def both_are_there() -> bool:
        services.supervise()
        return len(processes_that_know(tmp_path)) == 2

    until(both_are_there)
    assert len(family.logs) == 2
    assert len(processes_that_know(tmp_path)) == 2
    family.pause()
    assert family.is_running
    assert services.end() == []
    assert not processes_that_know(tmp_path)


def processes_that_know(folder: Path) -> list[str]:
    """The command lines of other processes that name the folder."""
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,args="], check=True, capture_output=True, text=True)
    lines = listed.stdout.splitlines()
    return [line for line in lines if str(folder) in line and int(line.split()[0]) != os.getpid()]
