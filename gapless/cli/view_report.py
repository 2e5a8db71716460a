"""Summaries and comparisons of recordings as tables for people, and as JSON for machines."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gapless.profile.comparison import Comparison, Figure, PairOfRuns
    from gapless.profile.summary import DeviceSummary, RunSummary, Summary

_FORMAT_VERSION = 2  # in 1 the whole of a gap was its main cause's
_WIDTH = 100  # of what goes to a file
CAUSES_SHOWN = 6
_IN_DETAIL = 6  # runs; of more than these each is one line


def print_summary(summary: Summary, file: TextIO) -> None:
    """Print each process and device with its runs of steps and what their gaps cost.

    Where there are many runs, each is one line.
    """
    console = console_on(file)
    if len(summary.runs) > _IN_DETAIL:
        from gapless.cli.view_overview import print_overview

        print_overview(summary, console)
        return
    for process in summary.processes:
        console.print(
            f"{process.label} ({process.file}): {counted(len(process.devices), 'device')}, "
            f"{counted(process.ranges, 'range')} of {counted(process.threads, 'thread')}",
            style="bold",
            markup=False,
            soft_wrap=True,
        )
        for device in process.devices:
            console.print(_device_line(device), markup=False, soft_wrap=True)
            for run in device.runs:
                _print_run(console, run, len(device.runs) > 1)
        console.print()


def print_comparison(comparison: Comparison, first: str, second: str, file: TextIO) -> None:
    """Print each pair of runs, one figure a line."""
    from rich.text import Text

    from gapless.profile.recording_folder import printable

    console = console_on(file)
    for number, pair in enumerate(comparison.pairs, 1):
        labels = f"A: {first}, {pair.first_label}; B: {second}, {pair.second_label}"
        table = table_of(f"{number}. {labels}")
        table.add_column("", no_wrap=True)
        for name in ("A", "B", "change %"):
            table.add_column(name, justify="right", no_wrap=True)
        for figure in pair.figures:
            if figure.first is not None or figure.second is not None:
                table.add_row(_named(figure), *_shown(figure))
        table.add_section()
        for figure in pair.causes[:CAUSES_SHOWN]:
            table.add_row(Text(f"idle per step, {printable(figure.name)}, us"), *_shown(figure))
        console.print(table)
        for note in pair.notes:
            console.print(f"note: {note}", markup=False, soft_wrap=True)
        console.print()


def summary_json(summary: Summary) -> dict[str, Any]:
    """The summary as plain data; units are in the names, and what is not known is null."""
    return {"format": "gapless-summary", "version": _FORMAT_VERSION, **asdict(summary)}


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data."""
    return {
        "format": "gapless-comparison",
        "version": _FORMAT_VERSION,
        "pairs": [_pair_json(pair) for pair in comparison.pairs],
        "notes": list(comparison.notes),
    }


def _pair_json(pair: PairOfRuns) -> dict[str, Any]:
    return {
        "first": pair.first_label,
        "second": pair.second_label,
        "figures": [
            {**asdict(figure), "change_percent": figure.change_percent} for figure in pair.figures
        ],
        "idle_per_step_by_cause": [
            {**asdict(figure), "change_percent": figure.change_percent} for figure in pair.causes
        ],
        "notes": list(pair.notes),
    }


def console_on(file: TextIO) -> Console:
    """A console of a width that suits where it writes to."""
    from rich.console import Console

    console = Console(file=file, highlight=False)
    # A file or a pipe has no width of its own, and the usual 80 would cut columns off.
    return console if console.is_terminal else Console(file=file, highlight=False, width=_WIDTH)


def table_of(title: str) -> Table:
    """A table in the style of this command."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    return Table(title=Text(title), box=SIMPLE_HEAD, show_edge=False, title_justify="left")


def _device_line(device: DeviceSummary) -> str:
    idle_us = device.span_us - device.busy_us
    return (
        f"  device {device.device}: busy {device.busy_percent:.2f} % of {time_of(device.span_us)}, "
        f"idle {time_of(idle_us)}; {counted(device.works, 'work')} on "
        f"{counted(device.streams, 'stream')}, {device.copies} of them copies"
    )


def _print_run(console: Console, run: RunSummary, is_one_of_several: bool) -> None:
    steps, idle = run.steps, run.idle
    tokens = "" if run.tokens_per_s is None else f", {run.tokens_per_s:.1f} tokens/s"
    left_out = f" after {steps.warmup} of warm-up" if steps.warmup else ""
    lines: tuple[str, ...] = (
        f"{steps.steps} steps{left_out}, {run.steps_per_s:.1f} steps/s{tokens}",
        f"step time  p50 {time_of(steps.step_p50_us)}, p99 {time_of(steps.step_p99_us)}; "
        f"from start to start p50 {time_of(steps.period_p50_us)}, "
        f"p99 {time_of(steps.period_p99_us)}",
        f"idle gaps  p50 {time_of(idle.p50_us)}, p99 {time_of(idle.p99_us)}, "
        f"max {time_of(idle.max_us)}; "
        f"total {time_of(idle.total_us)}, {run.idle_percent:.2f} % of {time_of(steps.span_us)}",
        f"busy       {steps.busy_percent:.2f} %",
    )
    if steps.unwanted_us:
        lines += (f"not wanted {time_of(steps.unwanted_us)} without requests, counted nowhere",)
    if is_one_of_several:
        console.print(f"    run {run.number}", style="bold")
    for line in lines:
        console.print(f"    {line}", markup=False, soft_wrap=True)
    if not run.lost:
        return
    from rich.text import Text

    from gapless.profile.recording_folder import printable

    per_token = run.tokens_per_s is not None
    table = table_of("    top causes of idle")
    table.add_column("    cause", overflow="fold")
    for name in ("gaps", "idle", "share %", "lost tokens/s" if per_token else "lost steps/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for cause in run.lost[:CAUSES_SHOWN]:
        rate = cause.tokens_per_s if cause.tokens_per_s is not None else cause.steps_per_s
        table.add_row(
            Text(f"    {printable(cause.name)}"),
            str(cause.gaps),
            time_of(cause.total_us),
            f"{cause.share_percent:.1f}",
            f"{rate:.2f}",
        )
    if len(run.lost) > CAUSES_SHOWN:
        rest = run.lost[CAUSES_SHOWN:]
        table.add_row(
            f"    and {len(rest)} more",
            str(sum(cause.gaps for cause in rest)),
            time_of(sum(cause.total_us for cause in rest)),
            f"{sum(cause.share_percent for cause in rest):.1f}",
            "",
        )
    console.print(table)


def _named(figure: Figure) -> str:
    return f"{figure.name}, {figure.unit}" if figure.unit else figure.name


def _shown(figure: Figure) -> tuple[str, str, str]:
    def number(value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.0f}" if figure.name == "steps" else f"{value:.2f}"

    change = figure.change_percent
    return (
        number(figure.first),
        number(figure.second),
        "-" if change is None else f"{change:+.1f}",
    )


def counted(count: int, what: str) -> str:
    """The count with its noun."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def time_of(us: float) -> str:
    """A time in the unit that suits it."""
    if us >= 1e6:
        return f"{us / 1e6:.3f} s"
    return f"{us / 1e3:.3f} ms" if us >= 1e4 else f"{us:.1f} us"
