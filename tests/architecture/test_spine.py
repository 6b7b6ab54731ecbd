"""The files to read before trusting the system are named, exist, and stay few (docs/architecture.md)."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_LINES = 8_000


def test_spine_can_be_read_in_an_afternoon() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    section = text.split("## The spine", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    files = [name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row)]
    assert len(files) == len(set(files)) > 20
    lines = sum(len((ROOT / name).read_text().splitlines()) for name in files)
    assert lines <= MOST_LINES
    prose = "\n".join(line for line in section.splitlines() if not line.startswith("| ") and "tests/" not in line)
    for name in re.findall(r"`([\w/]+\.py)`", prose):
        assert any(file.endswith(name) for file in files), f"{name} is not in the table"
