"""No two modules import each other, not even through others or only for types."""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate

import grimp

PACKAGES = ("common", "stage_writer", "delta_loader", "bootstrap")


def import_cycle(imported: Mapping[str, Iterable[str]]) -> str:
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return " -> ".join(error.args[1])
    return ""


def test_no_modules_import_each_other() -> None:
    graph = grimp.build_graph(*PACKAGES, include_external_packages=False, cache_dir=None)
    assert not import_cycle({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})


def test_each_module_can_be_imported_first() -> None:
    """An import also runs the packages packages a module, which may need the importing module."""
    graph = grimp.build_graph(
        *PACKAGES, include_external_packages=False, cache_dir=None, exclude_type_checking_imports=True
    )

    def with_packages(module: str) -> set[str]:
        imported = graph.find_modules_directly_imported_by(module)
        packages = {package for name in imported for package in accumulate(name.split("."), "{}.{}".format)}
        return {name for name in imported | packages if not f"{module}.".startswith(f"{name}.")}

    assert not import_cycle({module: with_packages(module) for module in graph.modules})
