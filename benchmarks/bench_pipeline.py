"""What double buffering gains for any function, and what a step of a pipeline costs the host.

The function is a chain of matrix products; after every result 400 us of Python follow. The peer is
the same pipeline at depth 1. The host's cost is what the pipeline adds to the function: copies to
and fro, and the bookkeeping.
"""

import tempfile
from statistics import median
from time import perf_counter_ns

import torch
from report import Measurement, load, publish

from gapless.pipeline import Pipeline
from gapless.profile import IdleReport, analyse, record

STEPS = 200
WARMUP = 10
REPEATS = 5
WORK_US = 400


def work() -> None:
    """Stand for what a program does with a result: Python that holds the lock."""
    until = perf_counter_ns() + WORK_US * 1000
    while perf_counter_ns() < until:
        pass


def measured(depth: int, batch: torch.Tensor, weight: torch.Tensor) -> tuple[IdleReport, float]:
    """One recorded run, and the host's time per step in microseconds without the function's."""
    in_function_ns = 0

    def step(x: torch.Tensor) -> torch.Tensor:
        nonlocal in_function_ns
        start_ns = perf_counter_ns()
        for _ in range(8):
            x = torch.relu(x @ weight)
        total = x.sum()
        in_function_ns += perf_counter_ns() - start_ns
        return total

    with (
        tempfile.TemporaryDirectory() as folder,
        Pipeline(step, depth, device="gapless") as pipeline,
    ):
        with record(folder, trace=False) as recording:
            for _ in pipeline.map([batch] * STEPS):
                work()
        statistics = pipeline.statistics
        host_us = statistics.prepare_us + statistics.submit_us - in_function_ns / 1e3
        return analyse(recording.timeline, warmup=WARMUP), host_us / STEPS


def main() -> None:
    """Measure and print."""
    load_before = load()
    batch = torch.randn(64, 512)
    weight = torch.randn(512, 512).mul_(0.05).to("gapless")
    runs = {depth: [measured(depth, batch, weight) for _ in range(REPEATS)] for depth in (1, 2)}

    def row(name: str, unit: str, figure: str, part: str) -> Measurement:
        values = {
            depth: [float(getattr(getattr(report, part), figure)) for report, _ in measurements]
            for depth, measurements in runs.items()
        }
        return Measurement(
            name, median(values[2]), unit, median(values[1]), "depth 1", repeats=tuple(values[2])
        )

    host = [host_us for _, host_us in runs[2]]
    publish(
        f"A pipeline's steps, {WORK_US} us of Python after each",
        [
            row("idle gap, p50", "us", "p50_us", "idle"),
            row("idle gap, p99", "us", "p99_us", "idle"),
            row("device busy", "%", "busy_percent", "steps"),
            row("from step to step, p50", "us", "period_p50_us", "steps"),
            Measurement(
                "host, beyond the function",
                median(host),
                "us",
                limit=100,
                repeats=tuple(host),
            ),
        ],
        load_before,
    )


if __name__ == "__main__":
    main()
