"""Files, links and tests that the documents name exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from common import reference

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A path of the repository in backquotes: it begins with one of the folders at the top.
TOPS = "common|stage_writer|delta_loader|bootstrap|tests|docs|demo|examples|devservices|benchmarks|model|deploy"
PATH = re.compile(rf"`((?:{TOPS})/[\w./-]*)`")
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    named = PATH.findall(page.read_text("utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_between_pages_resolves(page: Path) -> None:
    links = LINK.findall(page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


GENERATED = {f"docs/{name}" for name in reference.pages()}
FOR_USERS = [
    page
    for page in (path.relative_to(ROOT) for path in PAGES)
    if page.name != "CONTRIBUTING.md" and "internals" not in page.parts and str(page) not in GENERATED
]
MOST_WORDS, MOST_WORDS_OF_README = 25_000, 600


def test_user_pages_stay_short() -> None:
    words = {str(page): len((ROOT / page).read_text("utf-8").split()) for page in FOR_USERS}  # as `wc -w` counts them
    assert len(words) > 20
    assert sum(words.values()) <= MOST_WORDS, f"cut what another page or docs/internals has: {words}"
    assert words["README.md"] <= MOST_WORDS_OF_README


@pytest.mark.parametrize("page", FOR_USERS, ids=str)
def test_user_page_ends_with_further_reading(page: Path) -> None:
    _, heading, end = (ROOT / page).read_text("utf-8").rpartition("Read next")
    assert heading
    assert "](" in end
    assert "\n## " not in end


NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = NAMED_TEST.findall(page.read_text("utf-8"))
    tests = {path: (ROOT / path).read_text("utf-8") if (ROOT / path).exists() else "" for path, _ in named}
    assert [f"{path}::{name}" for path, name in named if f"\ndef {name}(" not in tests[path]] == []


LOADED = re.compile(
    r"""<(?:script|img|iframe|link[^>]*rel="(?:stylesheet|preload|icon)")[^>]*(?:src|href)="(?:https?:)?//"""
)


def test_site_builds_strictly_and_loads_no_external_resource(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(PAGES) - 2
    assert [page.name for page in pages if LOADED.search(page.read_text("utf-8"))] == []


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_readme_has_the_first_commands_of_a_clone(command: str) -> None:
    assert f"\n{command} " in (ROOT / "README.md").read_text()
    assert f"\n{command.removeprefix('make ')}: setup ##" in (ROOT / "Makefile").read_text()
