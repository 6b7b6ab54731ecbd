"""What a stage holds, read back by the formats' own reader."""

from common.ports import ObjectStore
from common.stage.markers import Manifest, Marker, MarkerName, marker_from_bytes


def markers(stage: ObjectStore, below: str = "done") -> list[Marker]:
    """Those in a folder of the stage, in the order of their paths; nothing else lies there."""
    markers_read = []
    for path in sorted(item.path for item in stage.list(below)):
        name = MarkerName.parse(path)
        assert name is not None, path
        markers_read.append(marker_from_bytes(name, stage.read(path) or b""))
    return markers_read


def manifests(stage: ObjectStore, below: str = "done") -> list[Manifest]:
    """The same of markers none of which was made by hand."""
    return [marker.manifest for marker in markers(stage, below) if marker.manifest is not None]
