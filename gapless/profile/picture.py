"""What lies between two steps, for several timelines, as one SVG picture on a common scale.

Each timeline shows the host's threads, the device's streams, and between them in red what idled.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from gapless.profile.causes import host_pieces
from gapless.profile.gaps import find_gaps
from gapless.profile.steps import find_steps
from gapless.profile.timeline import Timeline, TimelineError

_WIDTH = 960
_LABEL_WIDTH = 130
_ROW = 26
_BAR = 18
_TITLE = 34
_MARGIN = 12
_DEVICE_COLOUR = "#2f7d4f"
_IDLE_COLOUR = "#d1352b"
# Host ranges take these in turn; they differ in lightness too, for who sees no colours.
_HOST_COLOURS = ("#3b6ea8", "#8fb4dc", "#c9862b", "#e6c58a", "#7a5aa6", "#bda8d6")
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.title{font-weight:600}"
    ".small{font-size:11px}.ground{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.ground{fill:#161616}}"
)


@dataclass(frozen=True)
class _Bar:
    start_ns: int
    end_ns: int
    colour: str
    name: str


@dataclass(frozen=True)
class _Row:
    label: str
    bars: tuple[_Bar, ...]


def draw(
    path: str | os.PathLike[str],
    timelines: Sequence[tuple[str, Timeline]],
    window_us: float = 3000.0,
    warmup: int = 10,
) -> None:
    """Draw each titled timeline around the end of a step in its middle.

    The step is the one whose idle gap afterwards is the median, so that neither a lucky nor an
    unlucky one is shown.

    Args:
        path: the SVG file to write.
        timelines: titles and timelines, each of one device.
        window_us: how much time to show, a quarter of it before the step's end.
        warmup: how many steps to leave out at the beginning.

    Raises:
        TimelineError: a timeline has too few steps, or there is none.
        OSError: the file cannot be written.
    """
    if not timelines:
        raise TimelineError("there is no timeline to draw")
    # One scale for all, so that lengths may be compared.
    span_ns = int(window_us * 1000)
    colours: dict[str, str] = {}
    body: list[str] = []
    top = _MARGIN
    for title, timeline in timelines:
        start_ns = _typical_end(timeline, warmup) - span_ns // 4
        body.append(f'<text class="title" x="{_MARGIN}" y="{top + 18}">{escape(title)}</text>')
        top += _TITLE
        for row in _rows(timeline, start_ns, start_ns + span_ns, colours):
            body.append(f'<text x="{_MARGIN}" y="{top + 14}">{escape(row.label)}</text>')
            body.extend(_draw_bar(bar, top, start_ns, span_ns) for bar in row.bars)
            top += _ROW
        top += _MARGIN
    legend = {"device": _DEVICE_COLOUR, "idle": _IDLE_COLOUR, **colours}
    body.extend(_draw_legend(legend, span_ns, top))
    height = top + _ROW + _MARGIN
    Path(path).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
        f"<style>{_STYLE}</style>"
        f'<rect class="ground" width="{_WIDTH}" height="{height}"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _typical_end(timeline: Timeline, warmup: int) -> int:
    """When the step ended whose gap afterwards is the median one."""
    steps = find_steps(timeline, warmup=warmup)
    idle_ns = [gap.idle_ns for gap in find_gaps(timeline, steps)]
    by_length = sorted(range(len(idle_ns)), key=lambda index: idle_ns[index])
    return int(steps.end_ns[by_length[len(by_length) // 2]])


def _rows(
    timeline: Timeline, start_ns: int, end_ns: int, colours: dict[str, str]
) -> Iterator[_Row]:
    def clipped(start: int, end: int, colour: str, name: str) -> Iterator[_Bar]:
        start, end = max(start, start_ns), min(end, end_ns)
        if end > start:
            yield _Bar(start, end, colour, name)

    ranges = timeline.ranges
    for piece in host_pieces(timeline):
        bars: list[_Bar] = []
        for start, end, name_id in zip(
            piece.when.start.tolist(), piece.when.end.tolist(), piece.name_id.tolist(), strict=True
        ):
            name = ranges.names[name_id]
            if end > start_ns and start < end_ns and name not in colours:
                colours[name] = _HOST_COLOURS[len(colours) % len(_HOST_COLOURS)]
            bars.extend(clipped(start, end, colours.get(name, ""), name))
        if bars:
            yield _Row(f"host: {ranges.threads[piece.thread].name}", tuple(bars))
    busy = timeline.is_busy_work()
    for stream in np.unique(timeline.column("stream")[busy]).tolist():
        rows = np.flatnonzero(busy & (timeline.column("stream") == stream))
        bars = []
        for row in rows.tolist():
            _, _, _, step, _, _, _, start, end = timeline.work[row].tolist()
            bars.extend(clipped(start, end, _DEVICE_COLOUR, f"step {step}"))
        if bars:
            yield _Row(f"device: stream {stream}", tuple(bars))
    bars = []
    for gap in find_gaps(timeline, find_steps(timeline)):
        for start, end in gap.stretches:
            bars.extend(clipped(start, end, _IDLE_COLOUR, f"idle: {gap.cause}"))
    yield _Row("device: idle", tuple(bars))


def _draw_bar(bar: _Bar, top: int, start_ns: int, span_ns: int) -> str:
    scale = (_WIDTH - _LABEL_WIDTH - _MARGIN) / span_ns
    x = _LABEL_WIDTH + (bar.start_ns - start_ns) * scale
    # A gap too short for a pixel is shown as a hair line rather than not at all.
    width = max((bar.end_ns - bar.start_ns) * scale, 0.4)
    length_us = (bar.end_ns - bar.start_ns) / 1e3
    return (
        f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{_BAR}" fill="{bar.colour}">'
        f"<title>{escape(bar.name)}, {length_us:.1f} us</title></rect>"
    )


def _draw_legend(legend: dict[str, str], span_ns: int, top: int) -> Iterator[str]:
    x = _LABEL_WIDTH
    for name, colour in legend.items():
        yield f'<rect x="{x}" y="{top}" width="12" height="12" fill="{colour}"/>'
        yield f'<text class="small" x="{x + 17}" y="{top + 10}">{escape(name)}</text>'
        x += 30 + 7 * len(name)
    yield (
        f'<text class="small" x="{_WIDTH - _MARGIN}" y="{top + 10}" text-anchor="end">'
        f"width: {span_ns / 1e6:.2f} ms</text>"
    )
