"""Metrics as values that tests compare."""

from prometheus_client.parser import text_string_to_metric_families

from common.metrics import Metrics


def values(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def numbers(metrics: Metrics) -> dict[str, float]:
    """The same as text, such as ``files_total{app_id=orders}``; no buckets of histograms."""
    return {
        f"{name.partition('_')[2].partition('_')[2]}{{{', '.join('='.join(label) for label in labels)}}}": number
        for (name, labels), number in values(metrics).items()
        if not name.endswith("_bucket")
    }
