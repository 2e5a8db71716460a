"""The figures of the demo with a server as one table, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapless.cli.serve_demo import Difference, ServeReport, ServeRow

_COLUMNS = (
    "tok/s",
    "first token\nms p50",
    "inter-token\nms p50/p99",
    "idle gap us\np50/p99",
    "busy %",
)


def print_report(report: ServeReport) -> None:
    """Print the table, any difference, and where the trace lies, to standard output."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{report.model}, {report.dtype}, served by vLLM",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    table.add_column("at once", no_wrap=True)
    table.add_column("scheduling", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rows:
        table.add_row(*_cells(row), end_section=row.mode == "asynchronous")
    console = Console(highlight=False)
    console.print(table)
    if not report.differences:
        console.print("the tokens are identical in both modes")
    for found in report.differences:
        console.print(
            describe(found),
            style="yellow" if found.is_near_tie else "red",
            markup=False,
            soft_wrap=True,
        )
    if report.trace is not None:
        console.print(
            f"trace: {report.trace.resolve()} (open it in the Perfetto viewer)",
            markup=False,
            soft_wrap=True,
        )


def describe(found: Difference) -> str:
    """One line on where an answer differs between the modes, and how close the call was."""
    near = "" if found.margin is None else f"; the two likeliest are {found.margin:.2g} apart there"
    counted = ", near enough for rounding to choose" if found.is_near_tie else ""
    return (
        f"{found.batch} at once: answer {found.question} differs at new token {found.position}: "
        f"{_shown(found.synchronous)} synchronously, {_shown(found.asynchronous)} "
        f"asynchronously{near}{counted}"
    )


def write_json(report: ServeReport, path: Path) -> None:
    """Write everything but the timelines.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(json.dumps(as_json(report), indent=2) + "\n")


def as_json(report: ServeReport) -> dict[str, Any]:
    """The report as plain data; units are in the names."""
    return {
        "model": report.model,
        "dtype": report.dtype,
        "ready_s": report.ready_s,
        "tokens_identical": report.identical,
        "differences": [asdict(found) for found in report.differences],
        "trace": None if report.trace is None else str(report.trace.resolve()),
        "loads": [
            {
                "mode": row.mode,
                **asdict(row.load),
                "steps": None if row.idle is None else asdict(row.idle.steps),
                "idle": None if row.idle is None else asdict(row.idle.idle),
            }
            for row in report.rows
        ],
    }


def _cells(row: ServeRow) -> list[str]:
    load, found = row.load, row.idle
    return [
        str(load.requests),
        row.mode,
        f"{load.tokens_per_s:.1f}",
        f"{load.first_token_p50_ms:.0f}",
        f"{load.inter_token_p50_ms:.1f}/{load.inter_token_p99_ms:.1f}",
        "-" if found is None else f"{found.idle.p50_us:.0f}/{found.idle.p99_us:.0f}",
        "-" if found is None else f"{found.steps.busy_percent:.2f}",
    ]


def _shown(token: int | None) -> str:
    return "the end" if token is None else str(token)
