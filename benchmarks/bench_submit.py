"""What submitting costs the host while the device is busy, from Python, against torch's CPU."""

import time
from collections.abc import Callable
from statistics import median

import torch
from report import Measurement, load, publish

CALLS = 1000
REPEATS = 7


def keep_busy(block: torch.Tensor) -> None:
    """Queue enough work that the device does not run dry during a measurement."""
    for _ in range(4):
        torch.mm(block, block, out=torch.empty_like(block))


def main() -> None:
    """Measure and print."""
    load_before = load()
    block = torch.full((1500, 1500), 1e-3, device="gapless")
    x, y = torch.ones(8, 8, device="gapless"), torch.ones(8, 8)
    graph = torch.accelerator.Graph()
    with graph:
        for _ in range(200):
            x.add_(1.0)
    token = torch.zeros(8, dtype=torch.long, device="gapless")
    host = torch.empty(8, dtype=torch.long, pin_memory=True)
    event = torch.Event("gapless")

    def cost_us(call: Callable[[], object], calls: int = CALLS) -> tuple[float, ...]:
        out = []
        for _ in range(REPEATS):
            keep_busy(block)
            start_ns = time.perf_counter_ns()
            for _ in range(calls):
                call()
            out.append((time.perf_counter_ns() - start_ns) / 1e3 / calls)
            torch.accelerator.synchronize()
        return tuple(out)

    cases = {
        "add": (lambda: x + x, lambda: y + y),
        "mm": (lambda: x @ x, lambda: y @ y),
        "view": (lambda: x.t(), lambda: y.t()),
        "copy to pinned memory": (lambda: host.copy_(token, non_blocking=True), None),
        "event": (lambda: event.record(), None),
    }
    rows = []
    for name, (ours, theirs) in cases.items():
        values = cost_us(ours)
        peer = median(cost_us(theirs)) if theirs else None
        rows.append(Measurement(name, median(values), "us", peer, "cpu", repeats=values))
    values = cost_us(graph.replay, 50)
    rows.append(Measurement("replay of 200 operators", median(values), "us", repeats=values))
    publish("host time per call, device busy", rows, load_before)


if __name__ == "__main__":
    main()
