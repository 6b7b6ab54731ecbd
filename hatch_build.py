"""Puts what is compiled into a wheel: the reader of JSON, where there is a C compiler, and the loader's jar.

Without a C compiler, the wheel is for any platform. The jar is for each. It is compiled against Spark, so it is taken
from the cache, where `make setup` has put it. Modules are loaded from this folder, and need nothing but Python: nothing
of ours is installed while a wheel is built.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_COMPILER = Path(__file__).parent / "stage_writer" / "native" / "compiler.py"


class NativeReaderHook(BuildHookInterface):  # type: ignore[misc,type-arg,unused-ignore]
    """Hatchling's hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # type: ignore[explicit-any,unused-ignore]
        """Compile before the wheel is put together. An editable installation has the library in the cache."""
        if self.target_name != "wheel" or version == "editable":
            return
        self._include_jar(build_data)
        spec = importlib.util.spec_from_file_location("native_compiler", _COMPILER)
        if spec is None or spec.loader is None:
            return
        compiler = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compiler)
        library = Path(self.root) / "build" / compiler.fingerprint() / compiler.NAME
        try:
            compiler.compile_library(library, may_fetch=False)
        except compiler.CompileError as error:
            sys.stderr.write(f"The wheel is without the native JSON reader:\n{error}\n")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["force_include"][str(library)] = f"stage_writer/native/{compiler.NAME}"
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False

    def _include_jar(self, build_data: dict[str, Any]) -> None:  # type: ignore[explicit-any,unused-ignore]
        sys.path.insert(0, self.root)
        try:
            from delta_loader.spark.bridge_jar import NAME, built_jar  # noqa: PLC0415 - found by the line above
        finally:
            sys.path.remove(self.root)
        jar = built_jar()
        if jar.exists():
            build_data["force_include"][str(jar)] = f"delta_loader/java/{NAME}"
        else:
            sys.stderr.write(f"The wheel is without the loader's jar: run `make setup` first, which makes {jar}\n")
