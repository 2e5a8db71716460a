"""What submitting costs the host while the device is busy, from C++, against torch's CPU."""

from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from report import Measurement, load, publish
from torch.utils.cpp_extension import load as build

CALLS = 1000
LIMITS_US = {"add": 2.5, "mm": 3.0}
REPEATS = 15


def main() -> None:
    """Build the loops, measure and print."""
    source = Path(__file__).with_name("dispatch_loop.cpp")
    loops = build("gapless_dispatch_loop", [str(source)], extra_cflags=["-O2", "-g0"])
    load_before = load()
    block = torch.full((1500, 1500), 1e-3, device="gapless")
    x, y = torch.ones(8, 8, device="gapless"), torch.ones(8, 8)
    x_out, y_out = torch.empty_like(x), torch.empty_like(y)

    def once(call: Callable[[], float], busy: bool) -> float:
        if busy:  # enough work that the device does not run dry meanwhile
            for _ in range(4):
                torch.mm(block, block, out=torch.empty_like(block))
        cost_us = call()
        torch.accelerator.synchronize()
        return cost_us

    cases: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "add": (lambda: loops.add(x, CALLS), lambda: loops.add(y, CALLS)),
        "add into a tensor": (
            lambda: loops.add_out(x, x_out, CALLS),
            lambda: loops.add_out(y, y_out, CALLS),
        ),
        "mm": (lambda: loops.mm(x, CALLS), lambda: loops.mm(y, CALLS)),
        "view": (lambda: loops.view(x, CALLS), lambda: loops.view(y, CALLS)),
    }
    rows = []
    for name, (ours, theirs) in cases.items():
        pairs = [(once(ours, busy=True), once(theirs, busy=False)) for _ in range(REPEATS)]
        values = tuple(pair[0] for pair in pairs)
        peer = median(pair[1] for pair in pairs)
        limit = LIMITS_US.get(name)
        rows.append(Measurement(name, median(values), "us", peer, "cpu", limit, values))
    publish("host time per call from C++, device busy", rows, load_before)


if __name__ == "__main__":
    main()
