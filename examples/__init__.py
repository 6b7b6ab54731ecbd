"""Example topologies: see docs/topologies.md, and `pipeline.yaml` for their streams."""
