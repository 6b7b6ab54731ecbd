"""The jar of this product's Java classes (`delta_loader/java`): the bridge to Delta, and the log stores.

Rules:

1. It is compiled with the JDK's ``javac`` against pyspark's jars and the locked ones (`delta_loader.spark.jars`), once
   for each version of the sources and of Delta: both are in the name of its folder in the cache. It appears there
   whole, and the same class files make the same jar.
2. A wheel that is built where the jar is in the cache (after `make setup`) includes it, and the loader's image has it
   in its cache: no compiler is needed there. Otherwise, and for an older Delta, a loader compiles it when it first
   starts.
3. Apart from compiling, only Python's standard library is used: a wheel is built before anything is installed.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from common.downloads import cache_folder, ensure_jars
from common.errors import BuildError
from delta_loader.spark.pairs import LOCK, OLDER_LOCK, installed, is_release, locked_jars

NAME = "kafka-delta-express.jar"
FOLDER = Path(__file__).parent.parent / "java"

_RELEASE = "17"  # the release that Spark itself requires
_OPTIONS = ("--release", _RELEASE, "-proc:none", "-nowarn", "-encoding", "UTF-8")
# Its own Java lives for seconds, in which the second compiler does not pay: half of the CPU.
_SHORT_LIVED = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def sources() -> list[Path]:
    return sorted(FOLDER.glob("*.java"))


def built_jar(environ: Mapping[str, str] = os.environ, older: str = "") -> Path:
    """Where the jar is, or would be, in the cache; ``older`` is a version of Delta before the release's."""
    key = hashlib.sha256(repr(_OPTIONS).encode() + older.encode())
    for file in (OLDER_LOCK if older else LOCK, *sources()):
        key.update(file.read_bytes())
    return cache_folder(environ) / "built" / key.hexdigest()[:16] / NAME


def ensure_bridge_jar(environ: Mapping[str, str] = os.environ) -> Path:
    """The jar for the installed Delta, compiled if it is missing. Raises BuildError and DownloadError."""
    delta, spark = installed()
    older = "" if is_release(delta) else delta
    shipped = FOLDER / NAME
    if shipped.exists() and not older:
        return shipped
    target = built_jar(environ, older)
    if not target.exists():
        javac = _javac(environ)
        jars = ensure_jars([jar for group in locked_jars(delta, spark).values() for jar in group], environ)
        compile_jar(target, [*jars, *pyspark_jars()], javac)
    return target


def compile_jar(target: Path, class_path: Sequence[Path], javac: str = "javac") -> None:
    """Compile the sources against these jars to a jar at ``target``. Raises BuildError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Built next to its target and moved there, so two processes may do so at once.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as folder:
        classes = Path(folder) / "classes"
        command = [javac, *_SHORT_LIVED, *_OPTIONS, "-d", str(classes), "-cp", os.pathsep.join(map(str, class_path))]
        done = subprocess.run(  # noqa: S603 - the JDK's compiler
            [*command, *map(str, sources())], check=False, capture_output=True, text=True
        )
        if done.returncode != 0:
            msg = f"the loader's Java classes do not compile:\n{(done.stderr or done.stdout).strip()}"
            raise BuildError(msg, f"{javac} must belong to a JDK {_RELEASE} or later")
        jar = Path(folder) / target.name
        with zipfile.ZipFile(jar, "w") as archive:
            for path in sorted(classes.rglob("*.class")):
                archive.writestr(zipfile.ZipInfo(path.relative_to(classes).as_posix(), _EPOCH), path.read_bytes())
        jar.replace(target)


def pyspark_jars() -> list[Path]:
    """The jars that pyspark ships. Raises BuildError."""
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        msg = "the loader's Java classes are compiled against pyspark, which is not installed"
        raise BuildError(msg, "install kafka-delta-express[delta-loader]")
    return sorted((Path(pyspark.origin).parent / "jars").glob("*.jar"))


def _javac(environ: Mapping[str, str]) -> str:
    """The compiler next to the Java that Spark uses; raises BuildError."""
    home = environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home) / "bin" / "javac") if home else "javac", path=environ.get("PATH"))
    if program is None:
        searched = f"{home}/bin (JAVA_HOME)" if home else "the PATH"
        msg = f"the loader's Java classes are not built yet, and there is no javac in {searched}"
        raise BuildError(
            msg,
            f"install a JDK {_RELEASE} or later (a JRE has no compiler); or run `python -m delta_loader.spark.jars`"
            f" on a machine that has one, and copy {cache_folder(environ) / 'built'} here",
        )
    return program
