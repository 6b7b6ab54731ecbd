"""Tests what reads internals of libraries, with the lowest and the highest versions that pyproject.toml allows.

Beside the locked packages of this environment, which stay as they are: the other versions are in a folder that comes
before them. Needs uv (``make bounds`` installs it).
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
"""Read of them, and not in their documentation: confluent-kafka's consumer in memory, DuckDB's parse trees and JSON
functions, LMDB's database handles, and the client, errors and multipart uploads of s3fs."""
WITH = ("fsspec",)
"""Belongs to exactly one version of one of them."""
ENDS = ("lowest", "highest")
TESTS = (
    "tests/contract/test_store.py",
    "tests/contract/test_state_backends.py",
    "tests/property/test_decode_agrees.py",
    "tests/unit/stage_writer",
    "tests/property/test_native_fetching.py",
)


def bounded() -> list[str]:
    """The requirements of the packages, as pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed = [
        *project["dependencies"],
        *(text for extra in project["optional-dependencies"].values() for text in extra),
    ]
    return [text for text in listed if Requirement(text).name in {*INTERNALS_ARE_READ, *WITH}]


def main() -> int:
    """Both ends; the exit code of the first tests that failed."""
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
