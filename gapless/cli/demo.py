"""``gapless demo``: what running ahead of the device gains, in a server or in one process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

DEVICE = "gapless"
_HOST_WORK_US = 400


def demo(
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
    tokens: Annotated[
        int,
        typer.Option("--tokens", "--max-new-tokens", help="New tokens per prompt, at most."),
    ] = 64,
    trace: Annotated[Path, typer.Option(help="Where the Perfetto trace goes.")] = Path(
        "gapless-demo.pftrace"
    ),
    model: Annotated[
        Path | None, typer.Option(help="A model folder to use instead of SmolLM2-135M-Instruct.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process", help="No server: a decode loop in this process, without vLLM."
        ),
    ] = False,
    host_work_us: Annotated[
        int | None,
        typer.Option(
            help="With --in-process: Python work per step, in microseconds.",
            show_default=str(_HOST_WORK_US),
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="With --in-process: the device to show.")] = DEVICE,
) -> None:
    """Serve a model with and without asynchronous scheduling and show where the device idles.

    Starts vLLM's server in both modes, asks it a question and then eight at once, and writes a
    trace. Exits with 1 if the tokens differ between the modes.
    """
    from gapless.cli.outputs import require_writable
    from gapless.cli.status import stderr_console
    from gapless.errors import UsageError

    if tokens < 2:
        raise UsageError(f"--tokens is {tokens}; at least 2 are needed to see a gap between steps")
    if host_work_us is not None and host_work_us < 0:
        raise UsageError(f"--host-work-us is {host_work_us}; it must be 0 or more")
    require_writable(trace, "--trace")
    if json_path is not None:
        require_writable(json_path, "--json")
    console = stderr_console()
    if not in_process and (device != DEVICE or host_work_us is not None):
        console.print("--device and --host-work-us are for the demo in one process", style="dim")
        in_process = True
    if not in_process and (missing := why_no_server()) is not None:
        console.print(
            f"in one process, without a server: {missing}",
            style="dim",
            markup=False,
            soft_wrap=True,
        )
        in_process = True
    if in_process:
        work_us = _HOST_WORK_US if host_work_us is None else host_work_us
        same = in_one_process(console, tokens, work_us, trace, model, dtype, device, json_path)
    else:
        same = with_a_server(console, tokens, trace, model, dtype, json_path)
    if not same:
        raise typer.Exit(1)


def why_no_server() -> str | None:
    """What keeps vLLM from serving here; None if nothing does."""
    from gapless.cli.serve_checks import require_serving
    from gapless.errors import UsageError

    try:
        require_serving()
    except UsageError as error:
        return str(error)
    return None


def in_one_process(
    console: Console,
    tokens: int,
    host_work_us: int,
    trace: Path,
    model: Path | None,
    dtype: str,
    device: str,
    json_path: Path | None,
) -> bool:
    """Run, print and write; returns whether the tokens were the same."""
    from gapless.cli.demo_report import print_report, write_json
    from gapless.cli.in_process_demo import run_demo

    report = run_demo(console, tokens, host_work_us, trace, model, dtype, device)
    print_report(report)
    if json_path is not None:
        write_json(report, json_path)
    return report.identical


def with_a_server(
    console: Console,
    tokens: int,
    trace: Path,
    model: Path | None,
    dtype: str,
    json_path: Path | None,
) -> bool:
    """Serve, print and write; returns whether the tokens were the same."""
    from gapless.cli.serve_demo import run_demo
    from gapless.cli.serve_report import print_report, write_json

    report = run_demo(console, tokens, trace, model, dtype)
    print_report(report)
    if json_path is not None:
        write_json(report, json_path)
    return report.identical
