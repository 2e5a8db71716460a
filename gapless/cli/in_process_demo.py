"""The demo in one process: a generation sequentially and double-buffered, and what it cost."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from gapless.cli.demo_report import DemoReport, Row
    from gapless.models.load import LoadedModel
    from gapless.pipeline.batch_loop import StepResult
    from gapless.pipeline.measured_run import RunFigures

PROMPTS = (
    "Why does a processor wait for memory? Explain it to a child.",
    "Write a short story about a lighthouse keeper who never sleeps.",
    "What is the difference between a queue and a stack?",
    "How does a sailing boat move against the wind?",
    "Describe the water cycle step by step.",
    "Give me five tips for learning to play the piano.",
    "Why is the sky blue during the day and red in the evening?",
    "Explain how bread rises, and what yeast does.",
)
BATCHES = (1, 8)


def run_demo(
    console: Console,
    max_new_tokens: int,
    host_work_us: int,
    trace: Path,
    model_path: Path | None,
    dtype: str,
    device_name: str,
) -> DemoReport:
    """Do all the runs and write the trace; see ``gapless.cli.demo``."""
    import torch

    from gapless.cli.demo_report import DemoReport
    from gapless.cli.status import working
    from gapless.pipeline.device_choice import choose_device

    device = choose_device(device_name)  # before the model library is loaded, which takes seconds
    from gapless.models.load import load_model

    with working(console, "looking for the model") as notify:
        if model_path is None:
            from gapless.models.smollm2 import obtain_smollm2

            model_path = obtain_smollm2(notify)
        notify(f"loading {model_path}")
        reference = load_model(model_path, torch.device("cpu"), dtype)
        notify(f"copying the model to {device}")
        on_device = copy_to(reference.model, device)
    console.print(
        f"{model_path.name} in {reference.dtype.name} on {device}: {reference.dtype.why}",
        style="dim",
        markup=False,
        soft_wrap=True,
    )
    rows: list[Row] = []
    for batch in BATCHES:
        rows += run_batch(
            console, reference, on_device, batch, max_new_tokens, host_work_us, is_shown=batch == 1
        )
    return DemoReport(
        model=model_path.name,
        dtype=reference.dtype.name,
        device=str(device),
        host_work_us=host_work_us,
        rows=tuple(rows),
        trace=write_runs(rows, trace),
    )


def copy_to(model: Any, device: Any) -> Any:
    """A copy of the model on another device; the original stays where it is."""
    moved = copy.deepcopy(model).to(device)
    # Moving to some devices gives every use of a shared weight its own copy.
    moved.tie_weights()
    return moved


def run_batch(
    console: Console,
    reference: LoadedModel,
    on_device: Any,
    batch: int,
    max_new_tokens: int,
    host_work_us: int,
    is_shown: bool,
) -> list[Row]:
    """The three runs of one batch size: the reference first, then the device in both modes."""
    from gapless.cli.demo_report import Row
    from gapless.cli.generate import StreamPrinter, encode
    from gapless.cli.status import working
    from gapless.pipeline.batch_loop import DOUBLE_BUFFERED, SEQUENTIAL
    from gapless.pipeline.context_plan import plan_context
    from gapless.pipeline.decode_step import DecodeStep
    from gapless.pipeline.divergence import first_divergence
    from gapless.pipeline.measured_run import measure_run
    from gapless.pipeline.step_program import prepare

    prompts = [encode(reference, text, None) for text in PROMPTS[:batch]]
    plan = plan_context(reference.model.config, prompts, max_new_tokens)
    stops = reference.stop_tokens
    work = busy_work(host_work_us)

    def measure(program: Any, depth: int, extra: Callable[[StepResult], None] | None) -> RunFigures:
        steps = [work] if extra is None else [work, extra]
        return measure_run(program, prompts, depth, plan.max_new_tokens, stops, in_sequence(steps))

    with working(console, f"batch {batch}: reference on cpu") as notify:
        with threads_of(on_device.device):
            baseline = measure(
                prepare(DecodeStep(reference.model, batch, plan.context)), SEQUENTIAL, None
            )
        notify(f"batch {batch}: capturing the step")
        program = prepare(DecodeStep(on_device, batch, plan.context))
        notify(f"batch {batch}: sequential")
        sequential = measure(program, SEQUENTIAL, None)
        if not is_shown:
            notify(f"batch {batch}: double-buffered")
            buffered = measure(program, DOUBLE_BUFFERED, None)
    if is_shown:
        console.print(f"batch {batch}: double-buffered\n\n> {PROMPTS[0]}\n", markup=False)
        printer = StreamPrinter(reference.tokenizer, stops)
        try:
            buffered = measure(program, DOUBLE_BUFFERED, printer)
        finally:
            printer.finish()
    return [
        Row("cpu, eager", baseline, None),
        *(
            Row(
                name,
                figures,
                first_divergence(baseline.tokens, figures.tokens, prompts, reference.model),
            )
            for name, figures in (("sequential", sequential), ("double-buffered", buffered))
        ),
    ]


@contextmanager
def threads_of(device: Any) -> Iterator[None]:
    """Let torch's CPU device compute with as many threads as this device has cores.

    Both are then compared like for like, and the reference leaves the host the same core.
    """
    if device.type != "gapless":
        yield
        return
    import torch

    from gapless.device.cores import plan

    before = torch.get_num_threads()
    torch.set_num_threads(len(plan().device_cores))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def busy_work(duration_us: int) -> Callable[[object], None]:
    """Host work of this length per step: Python that holds the GIL, as a server's would."""

    def work(_: object) -> None:
        end_ns = time.monotonic_ns() + duration_us * 1000
        while time.monotonic_ns() < end_ns:
            pass

    return work


def in_sequence(steps: Sequence[Callable[[Any], None]]) -> Callable[[Any], None]:
    """One function that calls several."""

    def run(result: Any) -> None:
        for step in steps:
            step(result)

    return run


def write_runs(rows: Sequence[Row], path: Path) -> Path | None:
    """Write one trace of all recorded runs, each a process named after its mode and batch."""
    timelines = [
        dataclasses.replace(
            row.figures.timeline, process_name=f"batch {row.figures.rows}, {row.mode}"
        )
        for row in rows
        if row.figures.timeline is not None
    ]
    if not timelines:
        return None
    from gapless.profile import write_trace

    write_trace(path, timelines)
    return path
