"""One process, one device, each token made of the one before: double buffering all the same.

The token stays on the device, so that the next step can be submitted before the host has seen it.

    python examples/async/async_vs_sequential_autoregressive.py

runs both modes and puts them side by side; --sequential or --double-buffer runs one of them.
"""

import time
from pathlib import Path
from typing import Annotated

import typer
from showcase_model import check, choose_driver, host_work, make_step, numbers, require_answers
from showcase_report import WARMUP, ModeFigures, depths, figures, publish, run

from gapless.pipeline import Pipeline
from gapless.pipeline.worker_record import begin_record, end_record


def run_mode(depth: int, steps: int, hidden: int, device: str, work_us: float) -> ModeFigures:
    """Generate one token after the other, and look at each for a while."""
    step = make_step(hidden, device, is_decoding=True)
    results, seen_ns = [], []
    with Pipeline(step, depth, device=device) as pipeline:
        begin_record(pipeline.device)
        start_s = time.perf_counter()
        for result in pipeline.map(numbers(steps)):
            seen_ns.append(time.monotonic_ns())
            results.append(result)
            host_work(work_us)
        seconds = time.perf_counter() - start_s
        record = end_record(WARMUP)
    require_answers(results)
    return figures(depth, steps, seconds, [record], [seen_ns])


def main(
    sequential: Annotated[
        bool, typer.Option("--sequential", help="This mode alone; both if left out.")
    ] = False,
    double_buffer: Annotated[
        bool, typer.Option("--double-buffer", help="This mode alone; both if left out.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where to run: gapless, cpu, cuda ...")] = "gapless",
    driver: Annotated[
        str | None, typer.Option(help="What is under gapless: sim, the default, or cpu.")
    ] = None,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the two linear layers.")] = 8192,
    host_work_us: Annotated[float, typer.Option(min=0, help="Python per result.")] = 400,
    steps: Annotated[int, typer.Option(help="How many tokens.")] = 300,
    json_path: Annotated[Path | None, typer.Option("--json", help="Figures for machines.")] = None,
) -> None:
    """Sequential and double-buffered generation in one process."""
    wanted = depths(sequential, double_buffer, steps)
    is_simulated = choose_driver(device, driver)
    modes = [run_mode(depth, steps, hidden, device, host_work_us) for depth in wanted]
    compared = check(hidden, device, is_simulated, is_decoding=True)
    publish(
        f"One process, token after token, {host_work_us:g} us of host work per step",
        modes,
        compared,
        json_path,
    )


if __name__ == "__main__":
    run(main)
