"""Many processes, each with a device of its own, fed by one caller: AsyncExecutor.

    python examples/async/async_llm.py --world-size 64

runs both modes and puts them side by side; --sequential or --double-buffer runs one of them.
"""

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from showcase_model import check_workers, choose_driver, load, numbers, require_answers
from showcase_report import WARMUP, ModeFigures, depths, figures, publish, run

from gapless.pipeline import AsyncExecutor, WarmParent
from gapless.pipeline.worker_record import begin_record, end_record


def run_mode(executor: AsyncExecutor, steps: int) -> ModeFigures:
    """Send every worker the same tokens, and collect what they say."""
    results, sent_ns = [], []
    executor.call(begin_record, executor.device)
    start_s = time.perf_counter()
    for by_rank in executor.map(numbers(steps)):
        results.append(by_rank)
        sent_ns.append(executor.sent_ns)
    seconds = time.perf_counter() - start_s
    records = executor.call(end_record, WARMUP)
    for rank in range(executor.world_size):
        require_answers([by_rank[rank] for by_rank in results])
    return figures(
        executor.depth, steps, seconds, records, [list(each) for each in zip(*sent_ns, strict=True)]
    )


def main(
    sequential: Annotated[
        bool, typer.Option("--sequential", help="This mode alone; both if left out.")
    ] = False,
    double_buffer: Annotated[
        bool, typer.Option("--double-buffer", help="This mode alone; both if left out.")
    ] = False,
    world_size: Annotated[int, typer.Option(min=1, help="How many workers.")] = 4,
    device: Annotated[str, typer.Option(help="Where to run: gapless, cpu, cuda ...")] = "gapless",
    driver: Annotated[
        str | None, typer.Option(help="What is under gapless: sim, the default, or cpu.")
    ] = None,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the two linear layers.")] = 8192,
    host_work_us: Annotated[float, typer.Option(min=0, help="Python per step, per worker.")] = 50,
    steps: Annotated[int, typer.Option(help="How many inputs.")] = 500,
    port: Annotated[
        int | None, typer.Option(help="Also let the workers meet for torch.distributed; 0: any.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Figures for machines.")] = None,
) -> None:
    """Sequential and double-buffered inference in many processes."""
    wanted = depths(sequential, double_buffer, steps)
    choose_driver(device, driver)
    step = partial(load, hidden=hidden, work_us=host_work_us, device=device, is_decoding=False)
    modes = []
    with WarmParent() as parent:
        for depth in wanted:
            with AsyncExecutor(
                world_size, step, depth, device=device, port=port, parent=parent
            ) as executor:
                modes.append(run_mode(executor, steps))
        compared = check_workers(parent, world_size, device, is_decoding=False)
    title = f"{world_size} processes, {host_work_us:g} us of host work per step"
    publish(title, modes, compared, json_path)


if __name__ == "__main__":
    run(main)
