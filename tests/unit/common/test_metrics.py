import pytest

from common import metrics as all_metrics
from common.metrics import ALL_METRICS, Metric, MetricKind, Metrics
from tests.fakes.metrics import values


def test_each_metric_is_declared_once_and_named_by_prometheus_rules() -> None:
    assert len({metric.name for metric in ALL_METRICS}) == len(ALL_METRICS)
    for metric in ALL_METRICS:
        assert metric.name.startswith(("stage_writer_", "delta_loader_"))
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert metric.sentence.endswith(".")
        assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)


def test_only_metrics_that_a_service_sets_are_served() -> None:
    metrics = Metrics()
    assert values(metrics) == {}
    metrics.add(all_metrics.WRITER_RECORDS, 3, topic="orders")
    metrics.add(all_metrics.WRITER_RECORDS, topic="orders")
    metrics.add(all_metrics.WRITER_RECORDS, topic="invoices")
    metrics.set(all_metrics.WRITER_PAUSED, 1)
    assert values(metrics) == {
        ("stage_writer_records_total", (("topic", "orders"),)): 4,
        ("stage_writer_records_total", (("topic", "invoices"),)): 1,
        ("stage_writer_paused", ()): 1,
    }


def test_histogram_counts_its_observations() -> None:
    metrics = Metrics()
    metrics.observe(all_metrics.WRITER_FLUSH_SECONDS, 0.3)
    metrics.observe(all_metrics.WRITER_FLUSH_SECONDS, 1e9)
    samples = values(metrics)
    assert samples["stage_writer_flush_seconds_count", ()] == 2
    assert samples["stage_writer_flush_seconds_bucket", (("le", "0.5"),)] == 1
    assert samples["stage_writer_flush_seconds_bucket", (("le", "+Inf"),)] == 2


def test_forget_drops_a_gauge_s_old_labels() -> None:
    metrics = Metrics()
    metrics.forget(all_metrics.LOADER_HELD)
    metrics.set(all_metrics.LOADER_HELD, 2, app_id="orders", reason="gap")
    metrics.forget(all_metrics.LOADER_HELD)
    metrics.set(all_metrics.LOADER_HELD, 1, app_id="orders", reason="straddle")
    assert values(metrics) == {("delta_loader_held_partitions", (("app_id", "orders"), ("reason", "straddle"))): 1}


def test_two_services_in_one_process_do_not_share_values() -> None:
    writer_metrics, other = Metrics(), Metrics()
    writer_metrics.set(all_metrics.WRITER_PAUSED, 1)
    assert values(other) == {}


def test_wrong_metric_kind_or_label_raises() -> None:
    metrics = Metrics()
    with pytest.raises(TypeError):
        metrics.add(all_metrics.WRITER_PAUSED)
    with pytest.raises(TypeError):
        metrics.set(all_metrics.WRITER_RECORDS, 1, topic="x")
    with pytest.raises(TypeError):
        metrics.observe(all_metrics.WRITER_PAUSED, 1)
    with pytest.raises(ValueError, match="label names"):
        metrics.add(all_metrics.WRITER_RECORDS, color="green")


def test_every_metric_of_the_catalog_can_be_served() -> None:
    metrics = Metrics()

    def touch(metric: Metric) -> None:
        labels = dict.fromkeys(metric.labels, "x")
        match metric.kind:
            case MetricKind.COUNTER:
                metrics.add(metric, 1, **labels)
            case MetricKind.GAUGE:
                metrics.set(metric, 1, **labels)
            case MetricKind.HISTOGRAM:
                metrics.observe(metric, 1, **labels)

    for metric in ALL_METRICS:
        touch(metric)
    served = {name for name, _ in values(metrics)}
    for metric in ALL_METRICS:
        assert metric.name in served or f"{metric.name}_count" in served


def test_process_metrics_are_served_on_request() -> None:
    metrics = Metrics()
    metrics.with_process()
    assert values(metrics)["process_resident_memory_bytes", ()] > 0
