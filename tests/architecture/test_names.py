"""A class's name has one meaning in all packages."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("common", "stage_writer", "delta_loader", "bootstrap")


def test_no_two_classes_have_the_same_name() -> None:
    paths_of = defaultdict(list)
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                paths_of[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in paths_of.items() if len(paths) > 1} == {}
