"""A folder of recordings as one page for a browser, which loads nothing from anywhere."""

import html
import json
import os
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from gapless.profile.gaps import Gap, find_gaps
from gapless.profile.page_data import PageData
from gapless.profile.recording_folder import ProcessRecording
from gapless.profile.runs import split_runs
from gapless.profile.steps import find_steps
from gapless.profile.summary import Summary
from gapless.profile.timeline import TimelineError

_LONGEST = 20
_BINS = 24
_BAR_WIDTH = 26
_HEIGHT = 130


def write_page(
    path: str | os.PathLike[str],
    title: str,
    recordings: Sequence[ProcessRecording],
    summary: Summary,
    warmup: int = 0,
) -> None:
    """Write timeline, figures, a histogram of the gaps and the longest of them as one page.

    Args:
        path: the file to write.
        title: its heading.
        recordings: of a folder.
        summary: their figures.
        warmup: how many steps of each run to leave out of histogram and list.

    Raises:
        UsageError: there is too much for a page.
        OSError: the file cannot be written.
    """
    data = PageData(recordings)
    gaps = list(_all_gaps(recordings, warmup))
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    fields = {
        "title": html.escape(title),
        "notes": "".join(f'<p class="note">{html.escape(note)}</p>\n' for note in summary.notes),
        "figures": _figures(summary),
        "causes": _causes(summary),
        "histogram": _histogram([gap.idle_ns / 1e3 for _, gap in gaps]),
        "gaps": _longest(gaps, data.origin_ns),
        "css": _asset("page.css"),
        "script": _asset("timeline.js"),
        # A name in it must not end the element that holds it.
        "data": json.dumps(data.as_json(), separators=(",", ":")).replace("<", "\\u003c"),
    }
    # Split first: what is put in may itself look like a field.
    pieces = _asset("page.html").split("{{")
    text = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        text += [fields[name], rest]
    try:
        partial.write_text("".join(text), encoding="utf-8")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _asset(name: str) -> str:
    return (files("gapless.profile") / "page" / name).read_text(encoding="utf-8")


def _all_gaps(
    recordings: Iterable[ProcessRecording], warmup: int
) -> Iterable[tuple[ProcessRecording, Gap]]:
    for recording in recordings:
        for device in recording.timeline.devices:
            for run in split_runs(recording.timeline, device):
                try:
                    gaps = find_gaps(run, find_steps(run, device, warmup))
                except TimelineError:  # fewer than two steps
                    continue
                yield from ((recording, gap) for gap in gaps)


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """A table of cells in HTML; the first ``texts`` columns are text, the others numbers."""
    if not rows:
        return "<p>There is nothing to show.</p>"

    def row(cells: Sequence[str], tag: str, attributes: str = "") -> str:
        made = []
        for column, cell in enumerate(cells):
            kind = "" if column < texts else ' class="number"'
            made.append(f"<{tag}{attributes}{kind}>{cell}</{tag}>")
        return f"<tr>{''.join(made)}</tr>"

    head = row([html.escape(head) for head in heads], "th", ' scope="col"')
    body = "\n".join(row(cells, "td") for cells in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}">'
        f"<table><caption>{html.escape(caption)}</caption>"
        f"<thead>{head}</thead>\n"
        f"<tbody>{body}</tbody></table></div>"
    )


def _figures(summary: Summary) -> str:
    rows = []
    for process in summary.processes:
        for device in process.devices:
            label = html.escape(process.label)
            for run in device.runs:
                steps, idle = run.steps, run.idle
                rows.append(
                    [
                        label,
                        str(device.device),
                        str(run.number),
                        str(steps.steps),
                        f"{steps.step_p50_us:.1f} / {steps.step_p99_us:.1f}",
                        f"{idle.p50_us:.1f} / {idle.p99_us:.1f} / {idle.max_us:.1f}",
                        f"{idle.total_us:.1f}",
                        f"{steps.busy_percent:.2f}",
                        f"{run.steps_per_s:.1f}",
                        "-" if run.tokens_per_s is None else f"{run.tokens_per_s:.1f}",
                    ]
                )
            if not device.runs:
                rows.append(
                    [label, str(device.device), "-", "0", *"---", f"{device.busy_percent:.2f}"]
                    + ["-"] * 2
                )
    heads = ("process", "device", "run", "steps", "step us p50 / p99", "idle gap us p50/p99/max",
             "idle us", "busy %", "steps/s", "tokens/s")  # fmt: skip
    return _table("Times in microseconds; idle is the union over streams.", heads, rows, 3)


def _causes(summary: Summary) -> str:
    rows = [
        [
            html.escape(process.label),
            str(device.device),
            str(run.number),
            html.escape(cause.name),
            str(cause.gaps),
            f"{cause.total_us:.1f}",
            f"{cause.share_percent:.1f}",
            f"{cause.steps_per_s:.2f} steps"
            + ("" if cause.tokens_per_s is None else f", {cause.tokens_per_s:.2f} tokens"),
        ]
        for process, device, run in summary.runs
        for cause in run.lost
    ]
    heads = ("process", "device", "run", "cause", "gaps", "idle us", "share %", "lost per second")
    return _table(
        "Each gap is shared among the host ranges that cover parts of it.", heads, rows, 4
    )


def _longest(gaps: Sequence[tuple[ProcessRecording, Gap]], origin_ns: int) -> str:
    idle = [entry for entry in gaps if entry[1].idle_ns]
    rows = []
    for recording, gap in sorted(idle, key=lambda entry: -entry[1].idle_ns)[:_LONGEST]:
        label = html.escape(recording.label)
        at_ns = max(gap.stretches, key=lambda stretch: stretch[1] - stretch[0])[0] - origin_ns
        what = f"Show the gap before step {gap.after_step}"
        rows.append(
            [
                f'<button type="button" data-at="{at_ns}" data-process="{label}" '
                f'aria-label="{what} of {label}">show</button>',
                label,
                html.escape(gap.cause),
                f"{gap.before_step} to {gap.after_step}",
                f"{gap.idle_ns / 1e3:.1f}",
                html.escape(", ".join(f"{s.name} {s.idle_ns / 1e3:.1f}" for s in gap.shares)),
            ]
        )
    heads = ("", "process", "cause", "steps", "idle us", "shares us")
    return _table(f"{len(idle)} of {len(gaps)} pairs of steps have a gap.", heads, rows, 3)


def _histogram(idle_us: Sequence[float]) -> str:
    """Bars on a scale of equal ratios, since gaps lie between nanoseconds and seconds."""
    values = np.array([value for value in idle_us if value > 0])
    if len(values) == 0:
        return "<p>There is no idle gap.</p>"
    low, high = np.log10(values.min()), np.log10(values.max())
    if high - low < 0.3:
        low, high = low - 0.15, high + 0.15
    counts, edges = np.histogram(np.log10(values), bins=_BINS, range=(low, high))
    width, most = _BINS * _BAR_WIDTH, int(counts.max())
    parts = []
    for number, count in enumerate(counts.tolist()):
        left, right = 10 ** edges[number], 10 ** edges[number + 1]
        height = _HEIGHT * count / most
        x = number * _BAR_WIDTH
        parts.append(
            f'<rect class="bar" x="{x}" y="{20 + _HEIGHT - height:.1f}" width="{_BAR_WIDTH - 2}" '
            f'height="{height:.1f}"><title>{_us(left)} to {_us(right)}: {count}</title></rect>'
        )
        if count:
            parts.append(
                f'<text class="dim" x="{x + _BAR_WIDTH / 2 - 1}" y="{15 + _HEIGHT - height:.1f}" '
                f'text-anchor="middle">{count}</text>'
            )
        if number % 4 == 0:
            parts.append(f'<text x="{x}" y="{_HEIGHT + 38}">{_us(left)}</text>')
    zero = len(idle_us) - len(values)
    label = (
        f"Histogram of {len(values)} idle gaps from {_us(float(values.min()))} to "
        f"{_us(float(values.max()))}, median {_us(float(np.median(values)))}; "
        f"{zero} pairs of steps have none"
    )
    axis = f'x1="0" x2="{width}" y1="{_HEIGHT + 20}" y2="{_HEIGHT + 20}"'
    size = f'width="{width + 40}" height="{_HEIGHT + 46}"'
    return (
        f'<p>{label}.</p><div class="scroll" tabindex="0" role="region" aria-label="Histogram">'
        f'<svg {size} role="img" aria-label="{label}">{"".join(parts)}'
        f'<line class="axis" {axis}/></svg></div>'
    )


def _us(value_us: float) -> str:
    if value_us >= 1e6:
        return f"{value_us / 1e6:.3g} s"
    if value_us >= 1e3:
        return f"{value_us / 1e3:.3g} ms"
    return f"{value_us:.3g} us"
