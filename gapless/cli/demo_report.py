"""The demo's figures as one table, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapless.pipeline.divergence import Divergence
    from gapless.pipeline.measured_run import RunFigures


@dataclass(frozen=True)
class Row:
    """One run, and where its tokens first differ from the reference's; None if nowhere."""

    mode: str
    figures: RunFigures
    divergence: Divergence | None


@dataclass(frozen=True)
class DemoReport:
    """All runs of a demo."""

    model: str
    dtype: str
    device: str
    host_work_us: int
    rows: tuple[Row, ...]
    trace: Path | None

    @property
    def identical(self) -> bool:
        """Whether every run gave the reference's tokens."""
        return all(row.divergence is None for row in self.rows)


def print_report(report: DemoReport) -> None:
    """Print the table, any divergence, and where the trace lies, to standard output."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{report.model}, {report.dtype}, {report.host_work_us} us of host work per step",
        box=SIMPLE_HEAD,
        padding=0,  # with all figures at their longest it just fits 80 columns
        show_edge=False,
    )
    table.add_column("batch", no_wrap=True)
    table.add_column("mode", no_wrap=True)
    for name in ("tokens/s", "step ms\np50/p99", "idle gap us\np50/p99/max", "busy%", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rows:
        figures, idle = row.figures, row.figures.idle
        table.add_row(
            str(figures.rows),
            row.mode,
            f"{figures.tokens_per_s:.1f}",
            f"{figures.step_p50_us / 1e3:.1f}/{figures.step_p99_us / 1e3:.1f}",
            "-" if idle is None else f"{idle.p50_us:.0f}/{idle.p99_us:.0f}/{idle.max_us:.0f}",
            "-" if idle is None else f"{idle.busy_percent:.2f}",
            _verdict(row),
            end_section=row.mode == "double-buffered",
        )
    console = Console(highlight=False)
    console.print(table)
    for row in report.rows:
        if row.divergence is not None:
            console.print(describe(row), style="red", markup=False, soft_wrap=True)
    if report.trace is not None:
        console.print(
            f"trace: {report.trace.resolve()} (open it in the Perfetto viewer)",
            markup=False,
            soft_wrap=True,
        )


def describe(row: Row) -> str:
    """One line on where a run left the reference, and how close the call was."""
    found = row.divergence
    if found is None:
        return f"batch {row.figures.rows}, {row.mode}: tokens identical to the reference"
    return (
        f"batch {row.figures.rows}, {row.mode}: row {found.row} differs from the reference at new "
        f"token {found.position}: {_shown(found.found)} instead of {_shown(found.expected)}; the "
        f"reference's two largest logits are {found.margin:.2g} apart there"
    )


def write_json(report: DemoReport, path: Path) -> None:
    """Write everything but the timelines.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(json.dumps(as_json(report), indent=2) + "\n")


def as_json(report: DemoReport) -> dict[str, Any]:
    """The report as plain data; units are in the names."""
    return {
        "model": report.model,
        "dtype": report.dtype,
        "device": report.device,
        "host_work_us": report.host_work_us,
        "tokens_identical": report.identical,
        "trace": None if report.trace is None else str(report.trace.resolve()),
        "runs": [_row_json(row) for row in report.rows],
    }


def _row_json(row: Row) -> dict[str, Any]:
    figures = row.figures
    return {
        "mode": row.mode,
        "device": figures.device,
        "batch": figures.rows,
        "depth": figures.depth,
        "steps": figures.steps,
        "tokens_per_s": figures.tokens_per_s,
        "step_p50_us": figures.step_p50_us,
        "step_p99_us": figures.step_p99_us,
        "submit_p50_us": figures.submit_p50_us,
        "idle": None if figures.idle is None else asdict(figures.idle),
        "divergence": None if row.divergence is None else asdict(row.divergence),
        "tokens": figures.tokens,
    }


def _verdict(row: Row) -> str:
    if row.divergence is not None:
        return "differ"
    return "reference" if row.mode == "cpu, eager" else "identical"


def _shown(token: int | None) -> str:
    return "the end" if token is None else str(token)
