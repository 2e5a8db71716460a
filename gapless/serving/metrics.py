"""The engine's numbers as Prometheus metrics, on vLLM's own ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prometheus_client import REGISTRY
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gapless.serving.metrics_page import (
    GAP_BOUNDS_US,
    STEP_KINDS,
    WAIT_REASONS,
    PageValues,
    metrics_folder,
    read_pages,
)

_LABELS = ("model_name", "device", "engine")
_COUNTERS = {
    "tokens": "Tokens that steps computed.",
    "padded_tokens": "Tokens that were computed only to fill a bucket.",
    "graph_replays": "Steps that replayed a graph.",
    "graph_captures": "Graphs that were captured.",
    "departures": "Operations that left the asynchronous path.",
}
_GAUGES = {
    "steps_in_flight": "Steps that were submitted and not read yet.",
    "running_requests": "Requests in the running batch.",
    "packed_layers": "Linear layers with weights in the kernel's own layout.",
    "unpacked_layers": "Linear layers without.",
}


class EngineCollector(Collector):
    """Reads the engines' pages whenever ``/metrics`` is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def collect(self) -> Iterable[Metric]:
        """One family for each number, one sample for each engine."""
        pages = list(read_pages(self.folder))
        yield _gap_histogram(pages)
        busy = GaugeMetricFamily(
            "gapless_busy_ratio", "Share of the time of steps in which one ran.", labels=_LABELS
        )
        for page in pages:
            elapsed_us = page.numbers["elapsed_us"]
            if elapsed_us > 0:
                busy.add_metric(labels_of(page), page.numbers["busy_us"] / elapsed_us)
        yield busy
        yield _labelled(pages, "steps", "Steps by kind.", "kind", STEP_KINDS)
        yield _labelled(
            pages, "waits", "Steps in which something waited, by reason.", "reason", WAIT_REASONS
        )
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"gapless_{name}", text, labels=_LABELS)
            for page in pages:
                counter.add_metric(labels_of(page), page.numbers[name])
            yield counter
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"gapless_{name}", text, labels=_LABELS)
            for page in pages:
                gauge.add_metric(labels_of(page), page.numbers[name])
            yield gauge


def labels_of(page: PageValues) -> tuple[str, str, str]:
    """Whose numbers they are."""
    return page.model, page.device, page.engine


def _gap_histogram(pages: list[PageValues]) -> Metric:
    histogram = HistogramMetricFamily(
        "gapless_idle_gap_seconds", "Time between two steps in which none ran.", labels=_LABELS
    )
    for page in pages:
        buckets = [
            (f"{bound / 1e6:g}", page.numbers[f"gaps_le_{bound:g}"]) for bound in GAP_BOUNDS_US
        ]
        buckets.append(("+Inf", page.numbers["gaps"]))
        histogram.add_metric(labels_of(page), buckets, sum_value=page.numbers["gap_us"] / 1e6)
    return histogram


def _labelled(
    pages: list[PageValues], name: str, text: str, label: str, values: tuple[str, ...]
) -> Metric:
    counter = CounterMetricFamily(f"gapless_{name}", text, labels=(*_LABELS, label))
    for page in pages:
        for value in values:
            counter.add_metric((*labels_of(page), value), page.numbers[f"{name}_{value}"])
    return counter


_collector: EngineCollector | None = None


def export_metrics() -> None:
    """Add the engines' numbers to this process's metrics; once."""
    global _collector
    if _collector is None:
        _collector = EngineCollector(metrics_folder())
        REGISTRY.register(_collector)
