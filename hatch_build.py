"""Puts the compiled reader of JSON into a wheel, where there is a C compiler; without one it is for any platform.

The compiler's module is loaded from its file: nothing of ours, nor what it needs, is installed while a wheel is built.
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
