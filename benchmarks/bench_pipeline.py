"""What double buffering gains for any function, and what a step of a pipeline costs the host.

The function is a chain of matrix products; after every result 400 us of Python follow. The peer is
the same pipeline at depth 1. The host's cost is what the pipeline adds to the function: the copies
of the input and the result, and the bookkeeping. It is the thread's processor time, so that nothing
is in it that other programs take meanwhile, except for what they throw out of the caches. It
depends on these: a host that comes back after 400 us finds them warm, one that has slept for some
milliseconds does not. So the same is measured with a step that computes next to nothing.
"""

import tempfile
from statistics import median
from time import perf_counter_ns, thread_time_ns

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


def chain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The step."""
    for _ in range(8):
        x = torch.relu(x @ weight)
    return x.sum()


def measured(depth: int, batch: torch.Tensor, weight: torch.Tensor) -> IdleReport:
    """One recorded run."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Pipeline(lambda x: chain(x, weight), depth, device="gapless") as pipeline,
    ):
        with record(folder, trace=False) as recording:
            for _ in pipeline.map([batch] * STEPS):
                work()
        return analyse(recording.timeline, warmup=WARMUP)


def host_us(batch: torch.Tensor, weight: torch.Tensor) -> float:
    """What submitting a step takes the host beyond the function: its processor time, in
    microseconds, the median."""
    in_function_ns = 0

    def step(x: torch.Tensor) -> torch.Tensor:
        nonlocal in_function_ns
        start_ns = thread_time_ns()
        total = chain(x, weight)
        in_function_ns = thread_time_ns() - start_ns
        return total

    taken_ns = []
    with Pipeline(step, 2, device="gapless") as pipeline:
        for number in range(STEPS):
            start_ns = thread_time_ns()
            pipeline.submit(batch)
            taken_ns.append(thread_time_ns() - start_ns - in_function_ns)
            if number:
                pipeline.result()
            work()
        pipeline.result()
    return median(taken_ns[WARMUP:]) / 1e3


def main() -> None:
    """Measure and print."""
    load_before = load()
    batch = torch.randn(64, 512)
    weight = torch.randn(512, 512).mul_(0.05).to("gapless")
    runs = {depth: [measured(depth, batch, weight) for _ in range(REPEATS)] for depth in (1, 2)}

    def row(name: str, unit: str, figure: str, part: str) -> Measurement:
        values = {
            depth: [float(getattr(getattr(report, part), figure)) for report in measurements]
            for depth, measurements in runs.items()
        }
        return Measurement(
            name, median(values[2]), unit, median(values[1]), "depth 1", repeats=tuple(values[2])
        )

    small = torch.randn(2, 2)
    host = {
        "warm": [host_us(small, small.to("gapless")) for _ in range(REPEATS)],
        "after each step's wait": [host_us(batch, weight) for _ in range(REPEATS)],
    }
    publish(
        f"A pipeline's steps, {WORK_US} us of Python after each",
        [
            row("idle gap, p50", "us", "p50_us", "idle"),
            row("idle gap, p99", "us", "p99_us", "idle"),
            row("device busy", "%", "busy_percent", "steps"),
            row("from step to step, p50", "us", "period_p50_us", "steps"),
            *(
                Measurement(
                    f"host, beyond the function, {when}",
                    median(taken_us),
                    "us",
                    limit=100 if when == "warm" else None,
                    repeats=tuple(taken_us),
                )
                for when, taken_us in host.items()
            ),
        ],
        load_before,
    )


if __name__ == "__main__":
    main()
