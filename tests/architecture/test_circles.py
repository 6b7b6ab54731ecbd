"""No module imports, even for a type only, a module that imports it in turn."""

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

PACKAGES = ("common", "stage_writer", "delta_loader", "bootstrap")


def test_no_modules_import_each_other() -> None:
    graph = grimp.build_graph(*PACKAGES, include_external_packages=False, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")
