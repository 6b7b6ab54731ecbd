"""No module imports, even for a type only, a module that imports it in turn."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

PACKAGES = ("common", "stage_writer", "delta_loader", "bootstrap")
# Modules that may know each other; each group counts as one module.
TOGETHER = {
    "streams and tables of the DSL, each of which gives the others": {
        f"stage_writer.topologies.dsl.{name}" for name in ("builder", "grouped", "kstream", "ktable")
    },
}


def test_no_modules_import_each_other() -> None:
    graph = grimp.build_graph(*PACKAGES, include_external_packages=False, cache_dir=None)
    named = {module: group for group, modules in TOGETHER.items() for module in modules}
    assert named.keys() <= graph.modules
    imported: dict[str, set[str]] = {}
    for module in graph.modules:
        node = named.get(module, module)
        others = {named.get(other, other) for other in graph.find_modules_directly_imported_by(module)}
        imported.setdefault(node, set()).update(others - {node})
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")
