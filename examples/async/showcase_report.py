"""What the showcases print: one table, what was compared, and the machine's load."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from gapless.errors import GaplessError
from gapless.pipeline.worker_record import WorkerRecord

WARMUP = 10
MODES = {1: "sequential", 2: "double-buffered"}
LABELS = {
    "steps_per_s": "steps per second, of all devices",
    "step_us": "step, p50 (us)",
    "gap_p50_us": "idle gap, p50 (us)",
    "gap_p99_us": "idle gap, p99 (us)",
    "busy_percent": "device busy (%), of the least busy",
    "latency_us": "result after the step's end, p50 (us)",
    "jitter_us": "its jitter, p99 - p50 (us), of the worst worker",
    "virtual_jitter_us": "the step's own, on the device's clock (us)",
    "cpu_us": "processor time per step and worker (us)",
    "memory_mib": "memory per worker, shared in part (MiB)",
}


@dataclass(frozen=True)
class ModeFigures:
    """One mode, over all workers; where they differ, the median, or the one that is named."""

    mode: str
    workers: int
    steps: int
    steps_per_s: float
    step_us: float | None = None
    gap_p50_us: float | None = None
    gap_p99_us: float | None = None
    busy_percent: float | None = None
    latency_us: float | None = None
    jitter_us: float | None = None
    virtual_jitter_us: float | None = None
    cpu_us: float | None = None
    memory_mib: float | None = None


def figures(
    depth: int,
    steps: int,
    seconds: float,
    records: Sequence[WorkerRecord | None],
    seen_ns: list[list[int]],
) -> ModeFigures:
    """Sum up.

    Args:
        depth: 1 or 2.
        steps: how many each worker did.
        seconds: how long that took.
        records: one per worker; None where its device does not record.
        seen_ns: per worker, when each step's result was sent to the caller, or seen by it.
    """
    rate = steps * len(records) / seconds
    recorded = [each for each in records if each is not None]
    if len(recorded) < len(records):
        return ModeFigures(MODES[depth], len(records), steps, rate)
    latency = [
        (np.asarray(seen)[-len(record.step) :] - record.end_ns) / 1e3
        for record, seen in zip(recorded, seen_ns, strict=True)
    ]
    step_us = [(record.end_ns - record.start_ns) / 1e3 for record in recorded]
    return ModeFigures(
        mode=MODES[depth],
        workers=len(recorded),
        steps=steps,
        steps_per_s=rate,
        step_us=float(np.median([np.median(each) for each in step_us])),
        gap_p50_us=float(np.median([record.gap_p50_us for record in recorded])),
        gap_p99_us=float(np.median([record.gap_p99_us for record in recorded])),
        busy_percent=min(record.busy_percent for record in recorded),
        latency_us=float(np.median([np.median(each) for each in latency])),
        jitter_us=max(_jitter(each) for each in latency),
        virtual_jitter_us=max(_jitter(each) for each in step_us),
        cpu_us=float(np.mean([record.cpu_s for record in recorded])) / steps * 1e6,
        memory_mib=float(np.mean([record.memory_bytes for record in recorded])) / 2**20,
    )


def publish(title: str, modes: list[ModeFigures], compared: str, json_path: Path | None) -> None:
    """Print the figures, and write them where that was asked for."""
    table = Table(title=title, title_justify="left")
    table.add_column("measured")
    for mode in modes:
        table.add_column(mode.mode, justify="right")
    for name, label in LABELS.items():
        values = [getattr(mode, name) for mode in modes]
        if any(value is not None for value in values):
            table.add_row(label, *("" if value is None else f"{value:,.2f}" for value in values))
    console = Console()
    console.print(table)
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    console.print(f"checked: {compared}", highlight=False)
    console.print(f"{cores} cores, load {load:.1f} at the end", highlight=False)
    if json_path is not None:
        content = {"modes": [asdict(mode) for mode in modes], "compared": compared, "load": load}
        json_path.write_text(json.dumps(content, indent=2) + "\n")


def depths(is_sequential: bool, is_double_buffered: bool, steps: int) -> list[int]:
    """Which depths to run: the one that was asked for, or both.

    Raises:
        typer.BadParameter: both were asked for by name, or there are too few steps.
    """
    if is_sequential and is_double_buffered:
        raise typer.BadParameter(
            "give one of them, or neither for both modes side by side",
            param_hint="--sequential and --double-buffer",
        )
    if steps < WARMUP + 2:
        raise typer.BadParameter(
            f"{steps} inputs are too few: {WARMUP} warm up, and then double buffering, or a gap, "
            f"needs two; give at least {WARMUP + 2}",
            param_hint="--steps",
        )
    if is_sequential or is_double_buffered:
        return [2 if is_double_buffered else 1]
    return [1, 2]


def run(command: Callable[..., Any]) -> None:
    """Run a showcase's command; what a user can put right is said in a line."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    try:
        app()
    except GaplessError as error:
        print("error:", error, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        sys.exit(1)


def _jitter(values: np.ndarray) -> float:
    p50, p99 = np.percentile(values, (50, 99))
    return float(p99 - p50)
