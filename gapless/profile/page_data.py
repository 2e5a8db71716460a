"""What the page draws: every track as rows of disjoint bars, packed for the browser."""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gapless.errors import UsageError
from gapless.profile.gaps import find_gaps
from gapless.profile.intervals import Ints
from gapless.profile.nesting import lanes
from gapless.profile.recording_folder import ProcessRecording
from gapless.profile.runs import split_runs
from gapless.profile.steps import find_steps
from gapless.profile.timeline import COPY_KINDS, WORK_KINDS, Timeline, TimelineError
from gapless.profile.trace import queue_depth

MAX_BARS = 1_000_000
"""More than this is too much for a page: about 24 bytes each."""


class PageData:
    """Collects the tracks of recordings on one time line that begins at 0."""

    def __init__(self, recordings: Sequence[ProcessRecording]) -> None:
        self._names: dict[str, int] = {}
        self._origin_ns, self.end_ns = _bounds([recording.timeline for recording in recordings])
        self.end_ns -= self._origin_ns
        self.bars = 0
        self.processes = [
            {"label": recording.label, "tracks": list(self._tracks(recording.timeline))}
            for recording in recordings
        ]

    def as_json(self) -> dict[str, Any]:
        """The data as ``json.dumps`` takes it; times are nanoseconds since the first."""
        return {"names": list(self._names), "end": self.end_ns, "processes": self.processes}

    @property
    def origin_ns(self) -> int:
        """The moment that is 0 on the page."""
        return self._origin_ns

    def _tracks(self, timeline: Timeline) -> Iterator[dict[str, Any]]:
        ranges = timeline.ranges
        for number, thread in enumerate(ranges.threads):
            rows = np.flatnonzero(timeline.range_column("thread") == number)
            columns = [timeline.range_column(name)[rows] for name in ("start_ns", "end_ns", "step")]
            names = self._ids(ranges.names)[timeline.range_column("name_id")[rows]]
            yield self._track("host", thread.name, columns, names)
        for device in timeline.devices:
            yield from self._device_tracks(timeline, device)

    def _device_tracks(self, timeline: Timeline, device: int) -> Iterator[dict[str, Any]]:
        of_device = timeline.column("device") == device
        yield self._idle(timeline, device)
        moments, depths = queue_depth(timeline, np.flatnonzero(of_device & timeline.is_busy_work()))
        yield {
            "kind": "queue",
            "name": f"device {device}: queue depth",
            "time": _packed(moments - self._origin_ns, np.float64),
            "value": _packed(depths, np.int32),
            "most": int(depths.max(initial=0)),
        }
        self._count(len(moments))
        copies = of_device & np.isin(timeline.column("kind"), COPY_KINDS)
        for stream in np.unique(timeline.column("stream")[of_device]).tolist():
            rows = np.flatnonzero(of_device & (timeline.column("stream") == stream))
            names = self._ids(timeline.names)[timeline.column("name_id")[rows]]
            yield self._work(timeline, f"device {device}: stream {stream}", rows, names)
        if copies.any():
            rows = np.flatnonzero(copies)
            names = self._ids(WORK_KINDS)[timeline.column("kind")[rows]]
            yield self._work(timeline, f"device {device}: copies", rows, names, "copies")

    def _work(
        self, timeline: Timeline, name: str, rows: Ints, names: Ints, kind: str = "stream"
    ) -> dict[str, Any]:
        columns = [timeline.column(column)[rows] for column in ("start_ns", "end_ns", "step")]
        return self._track(kind, name, columns, names)

    def _idle(self, timeline: Timeline, device: int) -> dict[str, Any]:
        start, end, step, cause = [], [], [], []
        for run in split_runs(timeline, device):
            try:
                gaps = find_gaps(run, find_steps(run, device))
            except TimelineError:  # fewer than two steps: no gap to show
                continue
            for gap in gaps:
                for begins, ends in gap.stretches:
                    start.append(begins)
                    end.append(ends)
                    step.append(gap.after_step)
                    cause.append(gap.cause)
        names = self._ids(cause)
        columns = [np.array(values, np.int64) for values in (start, end, step)]
        return self._track("idle", f"device {device}: idle between steps", columns, names)

    def _track(self, kind: str, name: str, columns: Sequence[Ints], names: Ints) -> dict[str, Any]:
        """A track of bars; the columns are start, end and step."""
        start, end, step = columns
        self._count(len(start))
        rows = []
        for row in _disjoint_rows(start, end):
            rows.append(
                {
                    "start": _packed(start[row] - self._origin_ns, np.float64),
                    "length": _packed(end[row] - start[row], np.float32),
                    "name": _packed(names[row], np.uint16),
                    "step": _packed(step[row], np.int32),
                }
            )
        return {"kind": kind, "name": name, "rows": rows}

    def _count(self, bars: int) -> None:
        self.bars += bars
        if self.bars > MAX_BARS:
            raise UsageError(
                f"the recordings hold more than {MAX_BARS} bars, too many for a page; view one of "
                "the files with -d FILE, or use --output-format perfetto"
            )

    def _ids(self, names: Sequence[str]) -> Ints:
        ids = [self._names.setdefault(name, len(self._names)) for name in names]
        if len(self._names) > np.iinfo(np.uint16).max:
            raise UsageError(
                f"the recordings hold more than {np.iinfo(np.uint16).max} different names, too "
                "many for a page; use --output-format perfetto"
            )
        return np.array(ids, np.int64)


def _bounds(timelines: Sequence[Timeline]) -> tuple[int, int]:
    """When the first of all things began, and when the last ended."""
    bounds = [timeline.bounds_ns for timeline in timelines if timeline.events]
    first, last = [start for start, _ in bounds], [end for _, end in bounds]
    return min(first, default=0), max(last, default=1)


def _disjoint_rows(start: Ints, end: Ints) -> list[Ints]:
    """Deal bars to rows: what is nested lies in the row below, what overlaps in further ones."""
    rows: list[Ints] = []
    for lane in lanes(start, end):
        by_depth: list[list[int]] = []
        stack: list[int] = []
        for index in lane:
            while stack and stack[-1] <= start[index]:
                stack.pop()
            if len(stack) == len(by_depth):
                by_depth.append([])
            by_depth[len(stack)].append(index)
            stack.append(int(end[index]))
        rows.extend(np.array(row, np.int64) for row in by_depth)
    return rows


def _packed(values: Ints, kind: npt.DTypeLike) -> str:
    little = np.asarray(values).astype(np.dtype(kind).newbyteorder("<"))
    return base64.b64encode(little.tobytes()).decode()
