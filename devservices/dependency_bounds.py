"""Tests the code that reads libraries' internals with the lowest and the highest versions that pyproject.toml allows.

This environment's locked packages stay as they are: the other versions are in a folder ahead of them on PYTHONPATH.
Needs uv (``make bounds`` installs it).
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
INTERNALS_ARE_READ = ("confluent-kafka", "duckdb", "lmdb", "s3fs")
"""Packages with undocumented internals that the product reads: confluent-kafka's consumer in memory, DuckDB's parse
trees and JSON functions, LMDB's database handles, and the client, errors and multipart uploads of s3fs."""
MATCHED = ("fsspec",)
"""Packages that match exactly one version of a package above."""
ENDS = ("lowest", "highest")
TESTS = (
    "tests/contract/test_store.py",
    "tests/contract/test_state_backends.py",
    "tests/property/test_decode_agrees.py",
    "tests/unit/stage_writer",
    "tests/property/test_native_fetching.py",
)


def bounded() -> list[str]:
    """The requirements of these packages in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed = [
        *project["dependencies"],
        *(text for extra in project["optional-dependencies"].values() for text in extra),
    ]
    return [text for text in listed if Requirement(text).name in {*INTERNALS_ARE_READ, *MATCHED}]


def main() -> int:
    """Test both ends; return the exit code of the first failed test run, or 0."""
    for end in ENDS:
        folder = ROOT / "build" / "bounds" / end
        shutil.rmtree(folder, ignore_errors=True)
        install = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            "--python",
            sys.executable,
            "--no-deps",
        ]
        subprocess.run([*install, "--resolution", end, "--target", str(folder), *bounded()], check=True)
        versions = sorted(path.name.removesuffix(".dist-info") for path in folder.glob("*.dist-info"))
        print(f"{end}: {', '.join(versions)}", flush=True)
        environ = {**os.environ, "PYTHONPATH": str(folder)}
        tests = subprocess.run([sys.executable, "-m", "pytest", *TESTS], cwd=ROOT, env=environ, check=False)
        if tests.returncode:
            return tests.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
