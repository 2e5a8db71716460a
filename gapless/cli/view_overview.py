"""Many runs of steps, of many processes for instance: a line for each, and all together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.cli.view_report import CAUSES_SHOWN, counted, table_of, time_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from gapless.profile.summary import RunSummary, Summary


def print_overview(summary: Summary, console: Console) -> None:
    """Print a line for each run of steps, the bounds of all, and their causes of idle added up."""
    runs = [run for _, _, run in summary.runs]
    _print_runs(summary, console)
    console.print()
    busy = [run.steps.busy_percent for run in runs]
    medians = [run.idle.p50_us for run in runs]
    counts = f"{counted(len(runs), 'run')} of {counted(len(summary.processes), 'recording')}"
    console.print(
        f"{counts}: busy {min(busy):.2f} to {max(busy):.2f} %, idle gap p50 "
        f"{time_of(min(medians))} to {time_of(max(medians))}, longest "
        f"{time_of(max(run.idle.max_us for run in runs))}",
        markup=False,
        soft_wrap=True,
    )
    _print_causes(runs, console)


def _print_runs(summary: Summary, console: Console) -> None:
    from rich.text import Text

    table = table_of("Times in microseconds")
    table.add_column("process", overflow="fold")
    heads = ("device", "run", "steps", "step p50", "idle p50/p99/max", "busy %", "per second")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for process, device, run in summary.runs:
        steps, idle = run.steps, run.idle
        rate = (
            f"{run.steps_per_s:.1f} steps"
            if run.tokens_per_s is None
            else f"{run.tokens_per_s:.1f} tokens"
        )
        table.add_row(
            Text(process.label),
            str(device.device),
            str(run.number),
            str(steps.steps),
            f"{steps.step_p50_us:.1f}",
            f"{idle.p50_us:.1f}/{idle.p99_us:.1f}/{idle.max_us:.1f}",
            f"{steps.busy_percent:.2f}",
            rate,
        )
    console.print(table)


def _print_causes(runs: Sequence[RunSummary], console: Console) -> None:
    from rich.text import Text

    from gapless.profile.recording_folder import printable

    gaps: dict[str, int] = {}
    idle_us: dict[str, float] = {}
    for run in runs:
        for cause in run.idle.causes:
            gaps[cause.name] = gaps.get(cause.name, 0) + cause.gaps
            idle_us[cause.name] = idle_us.get(cause.name, 0.0) + cause.total_us
    total_us = sum(idle_us.values())
    if not total_us:
        return
    table = table_of("top causes of idle, of all runs together")
    table.add_column("cause", overflow="fold")
    for head in ("gaps", "idle", "share %"):
        table.add_column(head, justify="right", no_wrap=True)
    costliest = sorted(idle_us, key=lambda name: -idle_us[name])
    for name in costliest[:CAUSES_SHOWN]:
        share = 100 * idle_us[name] / total_us
        table.add_row(
            Text(printable(name)), str(gaps[name]), time_of(idle_us[name]), f"{share:.1f}"
        )
    console.print(table)
