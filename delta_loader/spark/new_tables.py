"""Liquid clustering of a new table, as in Delta's CREATE TABLE: a feature, and an action that names columns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delta_loader.spark.gateway import Gateway, Java
    from delta_loader.tables.load_modes.layout import Layout


def layout_properties(layout: Layout) -> dict[str, str]:
    """A new table's properties."""
    named = {"delta.feature.clustering": "supported"} if layout.cluster_by else {}
    return {**layout.properties, **named}


def clustering_actions(gateway: Gateway, transaction: Java, columns: tuple[str, ...]) -> tuple[Java, Java]:
    """A Java list of actions for a new table, and the columns as the operation names them.

    Raises what Spark raises, including for columns without statistics, which OPTIMIZE could not use.
    """
    actions = gateway.new_list()
    if not columns:
        return actions, gateway.none
    clustering = gateway.delta.skipping.clustering
    spec = clustering.temp.ClusterBySpec.fromProperty(json.dumps([column.split(".") for column in columns]))
    names = gateway.new_list()
    for column in columns:
        names.add(column)
    found = clustering.ClusteredTableUtils.getDomainMetadataFromTransaction(gateway.some(spec), transaction)
    actions.addAll(gateway.java(found))
    return actions, gateway.some(gateway.scala(names))


def clustered_by(gateway: Gateway, snapshot: Java) -> tuple[str, ...]:
    """The columns that a table is clustered by."""
    return gateway.texts(gateway.delta.skipping.clustering.ClusteringColumnInfo.extractLogicalNames(snapshot))
