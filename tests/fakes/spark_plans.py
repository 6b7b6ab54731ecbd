"""What Spark did for a query: how many files of a table it opened."""

from collections.abc import Iterator

from pyspark.sql import DataFrame

from delta_loader.spark.bridge import Java


def scanned_files(frame: DataFrame) -> int:
    """Run the query, and count the files that its scans opened. Make it a ``distinct``: a plain scan is not planned."""
    frame = frame.select("*")  # its own plan: one that ran before says nothing of its files when it runs again
    frame.collect()
    return sum(
        int(node.metrics().apply("numFiles").value())
        for node in _nodes(frame._jdf.queryExecution().executedPlan())
        if node.metrics().contains("numFiles")
    )


def _nodes(root: Java) -> Iterator[Java]:
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        name = node.getClass().getName()
        if "AdaptiveSparkPlanExec" in name:
            pending.append(node.executedPlan())
        elif "QueryStageExec" in name:
            pending.append(node.plan())
        children = node.children().iterator()
        while children.hasNext():
            pending.append(children.next())
