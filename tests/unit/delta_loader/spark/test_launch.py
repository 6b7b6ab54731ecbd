"""What is on the command line of Spark's Java, for every user of the machine to read."""

import stat
from pathlib import Path

import pytest

from delta_loader.spark.launch import launch_options

JAVA = "spark.driver.extraJavaOptions"


def test_command_line_has_only_options_that_java_needs_at_start() -> None:
    needed = {"spark.master": "local[2]", "spark.driver.memory": "2g", "spark.jars": "/a.jar", JAVA: "-Xss4m"}
    told_later = {
        "spark.hadoop.fs.s3a.encryption.key": "hunter2",
        "spark.hadoop.fs.s3a.some.name": "hunter2",
        "spark.sql.extensions": "a.B",
        "spark.jars.repositories": "https://ada:hunter2@jars",
    }
    with launch_options({**needed, **told_later}, {}) as launched:
        assert launched == needed


def test_options_that_java_needs_at_start_may_come_from_the_environment() -> None:
    given = {"spark.driver.memory": "2g", "spark.jars.repositories": "https://hunter2@jars"}
    with launch_options(given, {"2g", "hunter2"}) as launched:
        assert launched == {"spark.driver.memory": "2g"}


@pytest.mark.parametrize("hidden", [{"hunter 2"}, set()])
def test_java_options_with_a_secret_are_in_a_file_of_this_user_until_java_runs(hidden: set[str]) -> None:
    options = {JAVA: "-Xss4m '-Dx.password=hunter 2' -Dpath=C:\\\\x"}
    with launch_options(options, hidden) as launched:
        assert launched[JAVA].startswith("@")
        file = Path(launched[JAVA][1:])
        assert stat.S_IMODE(file.stat().st_mode) == stat.S_IRUSR | stat.S_IWUSR
        assert file.read_text("utf-8") == '"-Xss4m"\n"-Dx.password=hunter 2"\n"-Dpath=C:\\\\x"\n'
    assert not file.exists()
