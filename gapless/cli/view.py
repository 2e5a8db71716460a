"""``gapless view``: what recordings show, as a trace, a page, a table or JSON."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gapless.profile.summary import Summary

FORMATS = ("summary", "perfetto", "html", "json")
DEFAULT_FILES = {"perfetto": Path("system_profile.pftrace"), "html": Path("system_profile.html")}
_DEFAULT_FOLDER = "gapless-recording"


def view(
    folder: Annotated[
        Path | None,
        typer.Option(
            "-d",
            "--dir",
            help=f"A folder of recordings, or one of its files; by default {_DEFAULT_FOLDER}.",
        ),
    ] = None,
    output_format: Annotated[str, typer.Option(help=f"One of {', '.join(FORMATS)}.")] = "summary",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="The file to write; by default system_profile.pftrace or .html, or the terminal.",
        ),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A B", help="Put two folders of recordings side by side."),
    ] = None,
    warmup: Annotated[
        int, typer.Option(help="Steps to leave out at the beginning of each run.")
    ] = 0,
    tokens_per_step: Annotated[
        float | None,
        typer.Option(help="Tokens that a step gives, where the program did not count them."),
    ] = None,
) -> None:
    """Show where the device idled in recordings, and what the host was doing meanwhile."""
    from gapless.cli.outputs import require_writable
    from gapless.errors import UsageError

    if output_format not in FORMATS:
        raise UsageError(f"--output-format {output_format} is not one of {', '.join(FORMATS)}")
    if warmup < 0:
        raise UsageError(f"--warmup is {warmup}; it must be 0 or more")
    if tokens_per_step is not None and not 0 < tokens_per_step < float("inf"):
        raise UsageError(f"--tokens-per-step is {tokens_per_step:g}; it must be more than 0")
    target = output or DEFAULT_FILES.get(output_format)
    if target is not None:
        require_writable(target, "--output")
    if compare is not None:
        if folder is not None:
            raise UsageError("--compare names its two folders itself; leave out --dir")
        if output_format not in ("summary", "json"):
            raise UsageError(
                f"--compare gives summary or json, not {output_format}; view each folder by itself"
            )
        _compare(*compare, output_format, target, warmup, tokens_per_step)
    else:
        _view(folder or Path(_DEFAULT_FOLDER), output_format, target, warmup, tokens_per_step)


def _view(
    folder: Path,
    output_format: str,
    target: Path | None,
    warmup: int,
    tokens_per_step: float | None,
) -> None:
    from gapless.cli.view_report import print_summary, summary_json
    from gapless.profile.recording_folder import load_folder
    from gapless.profile.summary import summarise

    recordings = load_folder(folder)
    if output_format == "perfetto":
        assert target is not None
        _write_trace(target, [recording.timeline for recording in recordings])
        return
    summary = summarise(recordings, warmup, tokens_per_step)
    if output_format == "html":
        from gapless.profile.page_file import write_page

        assert target is not None
        write_page(target, f"Recordings of {folder}", recordings, summary, warmup)
        _tell_notes(summary)
        print(f"page: {target.resolve()} (open it in a browser)")
    elif output_format == "json":
        _put_json(summary_json(summary), target)
    else:
        _put(lambda file: print_summary(summary, file), target)
        _tell_notes(summary)


def _compare(
    first: Path,
    second: Path,
    output_format: str,
    target: Path | None,
    warmup: int,
    tokens_per_step: float | None,
) -> None:
    from gapless.cli.view_report import comparison_json, print_comparison
    from gapless.errors import UsageError
    from gapless.profile.comparison import compare
    from gapless.profile.recording_folder import load_folder
    from gapless.profile.summary import HOW_TO_MARK, summarise

    summaries = []
    for folder in (first, second):
        summary = summarise(load_folder(folder), warmup, tokens_per_step)
        if not summary.runs:
            raise UsageError(
                f"{folder} has no two numbered steps, so that there is nothing to compare; "
                f"{HOW_TO_MARK}"
            )
        summaries.append(summary)
    comparison = compare(*summaries)
    if output_format == "json":
        _put_json(comparison_json(comparison), target)
    else:
        _put(lambda file: print_comparison(comparison, str(first), str(second), file), target)
        for note in comparison.notes:
            print(f"note: {note}", file=sys.stderr)


def _write_trace(target: Path, timelines: list[Any]) -> None:
    from gapless.cli.status import stderr_console, working
    from gapless.profile.trace import write_trace
    from gapless.profile.trace_check import check_trace

    console = stderr_console()
    # Minutes pass where there are millions of events; into a log it would be noise.
    with working(console, f"writing {target}") if console.is_terminal else nullcontext():
        write_trace(target, timelines)
        found = check_trace(target)
    print(
        f"trace: {target.resolve()} ({found.processes} processes, {found.tracks} tracks, "
        f"{found.slices} slices, {found.flows} arrows; open it in the Perfetto viewer)"
    )


def _tell_notes(summary: Summary) -> None:
    for note in summary.notes:
        print(f"note: {note}", file=sys.stderr)


def _put_json(value: dict[str, Any], target: Path | None) -> None:
    import json

    _put(lambda file: print(json.dumps(value, indent=2), file=file), target)


def _put(show: Any, target: Path | None) -> None:
    """Show something on standard output, or in a file."""
    if target is None:
        show(sys.stdout)
        return
    with target.open("w", encoding="utf-8") as file:
        show(file)
    print(f"written to {target.resolve()}")
