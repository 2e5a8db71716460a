"""A timeline as a Perfetto trace, to be opened in the Perfetto viewer.

Each process shows its host threads (ranges), and for each device: a track of idle gaps named by
their cause, the depth of its queue, a track for every stream, with an arrow to each work from the
moment it was submitted, and one for the copies of all streams, named by their direction.
The viewer colours slices by their names, so that gaps of one cause are of one colour.
"""

import heapq
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gapless.profile.causes import HostPieces, host_pieces
from gapless.profile.gaps import Gap, find_gaps
from gapless.profile.intervals import Ints
from gapless.profile.nesting import Bracket, brackets, lanes
from gapless.profile.perfetto_file import PerfettoFile
from gapless.profile.runs import split_runs
from gapless.profile.steps import find_steps
from gapless.profile.timeline import COPY_KINDS, WORK_KINDS, Timeline, TimelineError

_MAX_PID = 1 << 22  # what Linux gives is smaller


def write_trace(path: str | os.PathLike[str], timelines: Sequence[Timeline]) -> None:
    """Write the timelines of one or several processes of one machine as a ``.pftrace`` file.

    Raises:
        OSError: the file cannot be written.
        ImportError: the package ``perfetto`` is not installed.
    """
    flow = 1
    pids: set[int] = set()
    with PerfettoFile(path) as file:
        for timeline in timelines:
            flow += _ProcessTrace(file, timeline, flow, _free_id_offset(timeline, pids)).write()


def _free_id_offset(timeline: Timeline, pids: set[int]) -> int:
    """What to add to the ids of process and threads, so that no other process here has them.

    The viewer takes two recordings of one pid for one process otherwise.
    """
    offset = 0
    while timeline.pid + offset in pids:
        offset += _MAX_PID
    pids.add(timeline.pid + offset)
    return offset


@dataclass(frozen=True, eq=False)
class _Slices:
    """Slices of one track, ready to be nested."""

    start: Ints
    end: Ints
    names: list[str]
    notes: list[dict[str, int | str]]
    flows: list[int | None]


class _Submission(NamedTuple):
    """The moment at which a row of work was submitted."""

    time_ns: int
    row: int


class _ProcessTrace:
    def __init__(
        self, file: PerfettoFile, timeline: Timeline, first_flow: int, id_offset: int
    ) -> None:
        self._file = file
        self._timeline = timeline
        self._first_flow = first_flow
        self._id_offset = id_offset
        self._process = file.process(timeline.process_name, timeline.pid + id_offset)

    def write(self) -> int:
        """Write everything, and say how many flow ids were used."""
        # Work that was submitted before the recording began has no moment for an arrow to start.
        has_flow = self._timeline.column("submit_ns") > 0
        callers = _submitting_threads(self._timeline, host_pieces(self._timeline))
        self._write_threads(has_flow, callers)
        for device in self._timeline.devices:
            self._write_device(device, has_flow, callers)
        return len(self._timeline.work)

    def _write_threads(self, has_flow: npt.NDArray[np.bool_], callers: Ints) -> None:
        ranges = self._timeline.ranges
        for thread_id, thread in enumerate(ranges.threads):
            track = self._file.thread(
                thread.name,
                self._timeline.pid + self._id_offset,
                thread.native_id + self._id_offset,
                self._process,
            )
            rows = np.flatnonzero(self._timeline.range_column("thread") == thread_id)
            step = self._timeline.range_column("step")[rows].tolist()
            name_id = self._timeline.range_column("name_id")[rows].tolist()
            slices = _Slices(
                start=self._timeline.range_column("start_ns")[rows],
                end=self._timeline.range_column("end_ns")[rows],
                names=[ranges.names[index] for index in name_id],
                notes=[{"step": number} if number >= 0 else {} for number in step],
                flows=[None] * len(rows),
            )
            submitted = np.flatnonzero(has_flow & (callers == thread_id))
            self._write_slices(track, thread.name, slices, "host", submitted)

    def _write_device(self, device: int, has_flow: npt.NDArray[np.bool_], callers: Ints) -> None:
        timeline = self._timeline
        of_device = timeline.column("device") == device
        track = self._file.track(f"device {device}", self._process)
        self._write_gaps(device, track)
        self._write_queue_depth(np.flatnonzero(of_device & timeline.is_busy_work()), track)
        unmarked = np.flatnonzero(of_device & has_flow & (callers < 0))
        if len(unmarked):
            submissions = self._file.track("submitted", track)
            for submission in self._submissions(unmarked):
                self._write_submission(submissions, submission)
        for stream in np.unique(timeline.column("stream")[of_device]).tolist():
            rows = np.flatnonzero(of_device & (timeline.column("stream") == stream))
            name = f"stream {stream}"
            slices = self._work_slices(rows, has_flow)
            self._write_slices(self._file.track(name, track), name, slices, "device", None, track)
        is_copy = np.isin(timeline.column("kind"), COPY_KINDS)
        self._write_copies(np.flatnonzero(of_device & is_copy), track)

    def _work_slices(self, rows: Ints, has_flow: npt.NDArray[np.bool_]) -> _Slices:
        timeline = self._timeline
        columns = {
            name: timeline.column(name)[rows].tolist()
            for name in ("work", "step", "name_id", "kind", "submit_ns", "start_ns")
        }
        notes: list[dict[str, int | str]] = []
        for work, step, kind, submit_ns, start_ns in zip(
            columns["work"],
            columns["step"],
            columns["kind"],
            columns["submit_ns"],
            columns["start_ns"],
            strict=True,
        ):
            note: dict[str, int | str] = {"work": work, "kind": WORK_KINDS[kind]}
            if step >= 0:
                note["step"] = step
            if submit_ns > 0:
                note["queued_ns"] = start_ns - submit_ns
            notes.append(note)
        flowing = has_flow[rows].tolist()
        return _Slices(
            start=timeline.column("start_ns")[rows],
            end=timeline.column("end_ns")[rows],
            names=[timeline.names[index] for index in columns["name_id"]],
            notes=notes,
            flows=[
                self._first_flow + row if flows else None
                for row, flows in zip(rows.tolist(), flowing, strict=True)
            ],
        )

    def _write_slices(
        self,
        track: int,
        name: str,
        slices: _Slices,
        category: str,
        submitted: Ints | None,
        parent: int | None = None,
    ) -> None:
        """Write nested slices, and between them the moments at which work was submitted.

        Where slices overlap without nesting, those that do not fit go to further tracks.
        """
        moments = [] if submitted is None else self._submissions(submitted)
        for number, lane in enumerate(lanes(slices.start, slices.end)):
            if number:
                above = self._process if parent is None else parent
                track = self._file.track(f"{name} (overlapping)", above)
            events: Iterator[Bracket | _Submission] = heapq.merge(
                brackets(slices.start, slices.end, lane),
                [] if number else moments,
                key=lambda event: event.time_ns,
            )
            for event in events:
                if isinstance(event, _Submission):
                    self._write_submission(track, event)
                elif event.opens:
                    row = event.row
                    self._file.begin(
                        track,
                        event.time_ns,
                        slices.names[row],
                        category,
                        slices.notes[row],
                        slices.flows[row],
                    )
                else:
                    self._file.end(track, event.time_ns)

    def _submissions(self, rows: Ints) -> list[_Submission]:
        submit_ns = self._timeline.column("submit_ns")[rows]
        order = np.argsort(submit_ns, kind="stable")
        pairs = zip(submit_ns[order].tolist(), rows[order].tolist(), strict=True)
        return [_Submission(time_ns, row) for time_ns, row in pairs]

    def _write_submission(self, track: int, submission: _Submission) -> None:
        name_id = int(self._timeline.column("name_id")[submission.row])
        name, flow = self._timeline.names[name_id], self._first_flow + submission.row
        self._file.instant(track, submission.time_ns, name, "submit", starts_flow=flow)

    def _write_gaps(self, device: int, parent: int) -> None:
        gaps: list[Gap] = []
        for run in split_runs(self._timeline, device):
            try:
                gaps += find_gaps(run, find_steps(run, device))
            except TimelineError:  # fewer than two steps: no gap to show, the rest is worth it
                continue
        if not gaps:
            return
        track = self._file.track("idle between steps", parent)
        for gap in gaps:
            notes: dict[str, int | str] = {
                "before step": gap.before_step,
                "after step": gap.after_step,
                "idle_ns": gap.idle_ns,
                **{f"{share.name}, ns": share.idle_ns for share in gap.shares},
            }
            for start_ns, end_ns in gap.stretches:
                self._file.begin(track, start_ns, f"idle: {gap.cause}", "idle", notes)
                self._file.end(track, end_ns)

    def _write_queue_depth(self, rows: Ints, parent: int) -> None:
        if len(rows) == 0:
            return
        track = self._file.counter("queue depth", parent)
        moments, depths = queue_depth(self._timeline, rows)
        for moment, depth in zip(moments.tolist(), depths.tolist(), strict=True):
            self._file.count(track, moment, depth)

    def _write_copies(self, rows: Ints, parent: int) -> None:
        if len(rows) == 0:
            return
        slices = self._work_slices(rows, np.zeros(len(self._timeline.work), np.bool_))
        kinds = self._timeline.column("kind")[rows].tolist()
        slices = replace(slices, names=[WORK_KINDS[kind] for kind in kinds])
        track = self._file.track("copies", parent)
        self._write_slices(track, "copies", slices, "copy", None, parent)


def queue_depth(timeline: Timeline, rows: Ints) -> tuple[Ints, Ints]:
    """How many of these works were submitted and not yet done: moments, and the depth from each."""
    submit_ns, start_ns, end_ns = (
        timeline.column(name)[rows] for name in ("submit_ns", "start_ns", "end_ns")
    )
    arrives = np.where(submit_ns > 0, np.minimum(submit_ns, start_ns), start_ns)
    moments, position = np.unique(np.concatenate((arrives, end_ns)), return_inverse=True)
    change = np.zeros(len(moments), np.int64)
    np.add.at(change, position[: len(rows)], 1)
    np.add.at(change, position[len(rows) :], -1)
    return moments, np.cumsum(change)


def _submitting_threads(timeline: Timeline, pieces: Sequence[HostPieces]) -> Ints:
    """For each work the thread that was inside a range when it was submitted; -1 for none.

    Of several threads, one that was inside a range called ``submit`` is preferred.
    """
    submit_ns = timeline.column("submit_ns")
    thread = np.full(len(submit_ns), -1, np.int64)
    is_certain = np.zeros(len(submit_ns), np.bool_)
    names = timeline.ranges.names
    submit_id = names.index("submit") if "submit" in names else -1
    for piece in pieces:
        if len(piece.when.start) == 0:
            continue
        index = np.searchsorted(piece.when.start, submit_ns, side="right") - 1
        inside = (index >= 0) & (submit_ns <= piece.when.end[np.maximum(index, 0)])
        submits = inside & (piece.name_id[np.maximum(index, 0)] == submit_id)
        take = (submits & ~is_certain) | (inside & (thread < 0))
        thread[take] = piece.thread
        is_certain |= submits
    return thread
