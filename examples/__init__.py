"""Topologies to begin with: see docs/topologies.md, and `pipeline.yaml` for their streams."""
