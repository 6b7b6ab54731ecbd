"""The loader's bill of materials: what has to be looked up for vulnerabilities has its name in Maven."""

import json
from pathlib import Path

from common.downloads import read_lock
from delta_loader.spark.jars import LOCK
from devservices.bill_of_jars import main


def test_bill_of_materials_has_each_jar_of_the_image_once(tmp_path: Path) -> None:
    bill = tmp_path / "bill.json"
    package = {"name": "pyspark", "purl": "pkg:pypi/pyspark@4.2.0"}
    bill.write_text(json.dumps({"bomFormat": "CycloneDX", "components": [package, {"name": "no purl"}]}), "utf-8")
    main(bill)
    main(bill)
    written = json.loads(bill.read_text("utf-8"))
    assert written["bomFormat"] == "CycloneDX"
    assert written["components"][:2] == [package, {"name": "no purl"}]
    jars = {component["purl"]: component["hashes"][0]["content"] for component in written["components"][2:]}
    locked = [jar for group in read_lock(LOCK).values() for jar in group]
    assert len(written["components"]) == 2 + len(locked)
    assert jars == {f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}": jar.sha256 for jar in locked}
    assert "pkg:maven/io.delta/delta-spark_4.2_2.13@4.4.0" in jars
