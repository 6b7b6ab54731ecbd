"""Adds the loader's jars to a bill of materials: ``python -m devservices.bill_of_jars BILL`` (CycloneDX, JSON).

The tool that makes a bill from Python packages does not know jars. Spark's own jars come inside pyspark's wheel, which
is in the bill as one package.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from common.downloads import Jar, read_lock
from delta_loader.spark.pairs import LOCK


def with_jars(bill: Mapping[str, object], jars: Iterable[Jar]) -> dict[str, object]:
    """The bill with one component for each jar, by Maven coordinates; adding the same jars again changes nothing."""
    components = bill.get("components", [])
    if not isinstance(components, list):
        msg = "the bill's components are not a list"
        raise TypeError(msg)
    added = {f"{component['purl']}": component for component in map(_component, jars)}
    return {**bill, "components": [*(entry for entry in components if entry.get("purl") not in added), *added.values()]}


def _component(jar: Jar) -> dict[str, object]:
    purl = f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "group": jar.group,
        "name": jar.artifact,
        "version": jar.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
    }


def main(path: Path) -> None:
    """Add the jars to the bill at ``path``."""
    jars = [jar for group in read_lock(LOCK).values() for jar in group]
    path.write_text(json.dumps(with_jars(json.loads(path.read_text("utf-8")), jars), indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
