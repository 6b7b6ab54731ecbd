"""User packages with the same name as one of this program's, such as ``common``.

Rules:

1. A package that the stream's ``topology_packages`` names is the user's for every module that is not this program's.
   This program's modules still get this program's package.
2. It is found by Python's rules, in the current folder first, and has another name in ``sys.modules`` (`alias_of`).
3. Without the setting, the error of an import that fails because this program's package was found names the setting.
"""

import builtins
import importlib.util
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from common.errors import ConfigError
from common.settings.checks.topology import PACKAGES_OF_THIS_PROGRAM

_HERE = Path(__file__).resolve().parents[2]
_import = builtins.__import__
_own: set[str] = set()


def use_packages(packages: Collection[str]) -> None:
    """Make these packages available to the user's modules, for the rest of the process. Raises ConfigError."""
    for name in packages:
        folder = _folder_of(name)
        if folder is None:
            msg = f"topology_packages names {name!r}, but you have no such package"
            raise ConfigError(msg, f"start the writer in the folder that contains it (this is {Path.cwd()})")
        if alias_of(name) not in sys.modules:
            _load(alias_of(name), folder)
        _own.add(name)
    if _own:
        builtins.__import__ = _import_for_importer  # type: ignore[assignment]


def alias_of(module: str) -> str:
    """The name in ``sys.modules`` of a user's module whose name is also one of this program's."""
    return f"topology_packages_{module}"


def own_name(module: str) -> str:
    """The name to import a user's module with."""
    return alias_of(module) if module.partition(".")[0] in _own else module


def shadowed_by(error: ImportError) -> ConfigError | None:
    """The error for an import that found this program's package in place of the user's; None for another cause."""
    name = (error.name or "").partition(".")[0]
    if name not in PACKAGES_OF_THIS_PROGRAM or name in _own:
        return None
    folder = _folder_of(name)
    if folder is None:
        return None
    problem = f"{error.name!r} is imported, but {name!r} is a package of this program: yours in {folder} is not visible"
    return ConfigError(problem, f"set topology_packages: [{name}] in the stream, or rename the package")


def _folder_of(name: str) -> Path | None:
    for entry in sys.path:
        folder = Path(entry or ".").resolve()
        spec = None if folder == _HERE else PathFinder.find_spec(name, [str(folder)])
        if spec is not None and spec.submodule_search_locations:
            package_folder = Path(next(iter(spec.submodule_search_locations))).resolve()
            if package_folder.parent != _HERE:
                return package_folder
    return None


def _load(alias: str, folder: Path) -> None:
    file = folder / "__init__.py"
    if not file.exists():  # a package without code of its own
        spec = importlib.util.spec_from_loader(alias, None, is_package=True)
    else:
        spec = importlib.util.spec_from_file_location(alias, file, submodule_search_locations=[str(folder)])
    if spec is None:
        raise ConfigError(f"the package in {folder} cannot be loaded", "rename it")
    spec.submodule_search_locations = [str(folder)]
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    if spec.loader is not None and file.exists():
        spec.loader.exec_module(module)


def _import_for_importer(
    name: str,
    globals: Mapping[str, object] | None = None,  # noqa: A002 - Python's names
    locals: Mapping[str, object] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> object:
    if level or name.partition(".")[0] not in _own or _is_of_this_program(globals):
        return _import(name, globals, locals, fromlist or (), level)
    return _import(alias_of(name), globals, locals, fromlist or (), 0)


def _is_of_this_program(importer: Mapping[str, object] | None) -> bool:
    if importer is None:
        return True
    name = str(importer.get("__package__") or importer.get("__name__") or "")
    return name.partition(".")[0] in PACKAGES_OF_THIS_PROGRAM
