"""What recording adds to a step on the host: its submissions, its number and its ranges.

It is processor time of the host's thread, which what else the machine does stretches least. What
the recorder costs the device's thread for each work is in ``bench_queue.py``.
"""

from collections.abc import Callable
from tempfile import TemporaryDirectory
from time import thread_time_ns

import torch
from report import Measurement, load, publish

from gapless.device import recorder
from gapless.profile import count_tokens, host_range, record

STEPS = 400
REPEATS = 9
STEP_US = 5180  # a short step of a large accelerator, of which recording may take a hundredth
LIMIT_PERCENT = 1.0


def main() -> None:
    """Measure steps with and without, in turn, so that what the machine does meets both."""
    load_before = load()
    x = torch.ones(8, device="gapless")
    token = torch.zeros(8, dtype=torch.long, device="gapless")
    host = torch.empty(8, dtype=torch.long, pin_memory=True)
    graph = torch.accelerator.Graph()
    with graph:
        for _ in range(20):
            x.add_(1.0)

    def step(number: int) -> None:
        with host_range("schedule", number):
            pass
        with host_range("prepare", number):
            pass
        with host_range("submit", number):
            recorder.set_step(number)
            graph.replay()
            host.copy_(token, non_blocking=True)
            recorder.set_step(-1)
        with host_range("wait", number):
            pass
        with host_range("process", number):
            count_tokens(8)

    def step_us(call: Callable[[int], None]) -> float:
        start_ns = thread_time_ns()
        for number in range(STEPS):
            call(number)
        spent_ns = thread_time_ns() - start_ns
        torch.accelerator.synchronize()
        return spent_ns / 1e3 / STEPS

    step_us(step)
    off, on = [], []
    for _ in range(REPEATS):
        off.append(step_us(step))
        with TemporaryDirectory() as folder, record(folder):
            on.append(step_us(step))
    added_us = min(on) - min(off)
    rows = [
        Measurement("step, not recorded", min(off), "us", repeats=tuple(off)),
        Measurement("step, recorded", min(on), "us", repeats=tuple(on)),
        Measurement("added", added_us, "us"),
        Measurement(
            f"added to a step of {STEP_US} us", 100 * added_us / STEP_US, "%", limit=LIMIT_PERCENT
        ),
    ]
    publish("what recording costs", rows, load_before)


if __name__ == "__main__":
    main()
