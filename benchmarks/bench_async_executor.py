"""What a step costs with many worker processes, and how busy it keeps their simulated devices.

The step is a graph that takes 5.18 ms on the simulator and computes nothing; the workers do 50 us
of work in Python before each submission. The peer is the same at depth 1.
"""

import os
import time
from functools import partial
from statistics import median

import torch
from report import Measurement, load, publish

from gapless.pipeline import AsyncExecutor, CapturedStep, WarmParent
from gapless.pipeline.worker_record import WorkerRecord, begin_record, end_record

WORKERS = (1, 8, 64)
STEPS = 300
WARMUP = 20
PROGRAM_US = 5180
WORK_US = 50
SIMULATED = {
    "GAPLESS_DRIVER": "sim",
    "GAPLESS_SIM_NUMERICS": "none",
    "GAPLESS_SIM_WORK_US": f"graph replay={PROGRAM_US}",
    "GAPLESS_SIM_COPY_LATENCY_US": "0",
}


def work(_: torch.Tensor) -> None:
    """Python for that much processor time."""
    until = time.thread_time_ns() + WORK_US * 1000
    while time.thread_time_ns() < until:
        pass


def load_step(rank: int) -> CapturedStep:
    """A step in which an input goes to the device and back."""
    return CapturedStep(torch.clone, [torch.zeros(16, dtype=torch.int64)], prepare=work)


def load_function(rank: int) -> object:
    """The same without a capture, as any function runs."""
    graph, stream = torch.accelerator.Graph(), torch.Stream("gapless")
    number = torch.zeros(16, dtype=torch.int64, device="gapless")
    torch.accelerator.synchronize()
    with stream, graph:
        result = number.clone()

    def step(value: torch.Tensor) -> torch.Tensor:
        work(value)
        number.copy_(value)
        graph.replay()
        return result

    return step


def measured(
    parent: WarmParent, workers: int, depth: int, step: object
) -> tuple[list[WorkerRecord], float, float]:
    """Each worker's record, the caller's processor time per step and worker, seconds per step."""
    item = torch.zeros(16, dtype=torch.int64)
    with AsyncExecutor(
        workers, step, depth, device="gapless", environment=SIMULATED, parent=parent
    ) as executor:
        executor.call(begin_record, "gapless")
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        for _ in executor.map([item] * STEPS):
            pass
        seconds, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
        return executor.call(end_record, WARMUP), cpu_s / STEPS / workers, seconds / STEPS


def main() -> None:
    """Measure and print."""
    load_before = load()
    cores = len(os.sched_getaffinity(0))
    rows = []
    with WarmParent() as parent:
        for workers in WORKERS:
            runs = {depth: measured(parent, workers, depth, load_step) for depth in (1, 2)}
            busy = {depth: min(each.busy_percent for each in run[0]) for depth, run in runs.items()}
            records, caller_s, period_s = runs[2]
            worker_us = sum(each.cpu_s for each in records) / workers / STEPS * 1e6
            rows += [
                Measurement(
                    f"{workers} workers: least busy device", busy[2], "%", busy[1], "depth 1"
                ),
                Measurement(
                    f"{workers} workers: from step to step",
                    period_s * 1e6,
                    "us",
                    PROGRAM_US,
                    "a program",
                ),
                Measurement(
                    f"{workers} workers: processor time, both ends",
                    worker_us + caller_s * 1e6,
                    "us",
                    limit=round(cores * PROGRAM_US / workers),
                ),
                Measurement(
                    f"{workers} workers: memory of one",
                    median(each.memory_bytes for each in records) / 2**20,
                    "MiB",
                ),
            ]
        records, caller_s, _ = measured(parent, 8, 2, partial(load_function))
        worker_us = sum(each.cpu_s for each in records) / 8 / STEPS * 1e6
        rows.append(
            Measurement("8 workers: the same, not captured", worker_us + caller_s * 1e6, "us")
        )
    publish(f"Steps in worker processes, {WORK_US} us of Python in each", rows, load_before)


if __name__ == "__main__":
    main()
