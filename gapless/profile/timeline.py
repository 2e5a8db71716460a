"""The timeline of one process: what its devices executed and what its host did meanwhile.

It needs no device: it may be built from a recording, loaded from a file, or made by hand.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gapless.errors import GaplessError
from gapless.profile.process_name import process_name
from gapless.profile.ranges import RANGE_COLUMNS, HostRanges

WORK_COLUMNS = (
    "device",
    "stream",
    "work",
    "step",
    "name_id",
    "kind",
    "submit_ns",
    "start_ns",
    "end_ns",
)
WORK_KINDS = ("op", "graph replay", "copy to device", "copy to host", "copy on device", "wait")
WAIT_KIND = WORK_KINDS.index("wait")
COPY_KINDS = [number for number, kind in enumerate(WORK_KINDS) if kind.startswith("copy")]


class TimelineError(GaplessError, ValueError):
    """A timeline contradicts itself or holds too little, or a file does not hold one."""


class RecordedWork(Protocol):
    """What the device's recorder hands out; see ``gapless.device.recorder.RecordBatch``."""

    @property
    def columns(self) -> npt.NDArray[np.int64]:
        """Work, int64 ``[n, 9]``, see ``WORK_COLUMNS``."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Names that ``name_id`` points into."""
        ...

    @property
    def dropped(self) -> int:
        """Work that the ring forgot."""
        ...


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _no_ranges() -> HostRanges:
    return HostRanges(np.empty((0, len(RANGE_COLUMNS)), np.int64), (), (), 0)


@dataclass(frozen=True, eq=False)
class Timeline:
    """Work of the devices and ranges of the host of one process, on one clock.

    Attributes:
        work: int64 ``[n, 9]``, see ``WORK_COLUMNS``; times in nanoseconds of ``CLOCK_MONOTONIC``.
            A step's number must be used once per device in a timeline, and -1 means no step.
            ``submit_ns`` is 0 for work that was submitted before the recording began.
        names: the names that the column ``name_id`` points into.
        ranges: what the host did.
        dropped_work: work that the recorder's ring forgot, so that the timeline lacks it.
        pid: the process.
        process_name: what it is called, see ``name_process``.
        realtime_offset_ns: what to add to a time here for nanoseconds since 1970.
        boot_id: which machine's run the clock belongs to; times of timelines that agree in it may
            be compared as they are. Empty where it is not known.
        tokens: how many tokens were counted meanwhile, see ``count_tokens``; 0 for not told.

    Raises:
        TimelineError: an array has another shape or type, an id points nowhere, or something
            ends before it starts.
    """

    work: npt.NDArray[np.int64]
    names: tuple[str, ...]
    ranges: HostRanges = field(default_factory=_no_ranges)
    dropped_work: int = 0
    pid: int = field(default_factory=os.getpid)
    process_name: str = field(default_factory=process_name)
    realtime_offset_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())
    boot_id: str = field(default_factory=_boot_id)
    tokens: int = 0

    def __post_init__(self) -> None:
        _check_table("work", self.work, len(WORK_COLUMNS))
        _check_table("host ranges", self.ranges.columns, len(RANGE_COLUMNS))
        _check_ids("work", self.column("name_id"), len(self.names), "names")
        _check_ids("work", self.column("kind"), len(WORK_KINDS), "kinds")
        names, threads = len(self.ranges.names), len(self.ranges.threads)
        _check_ids("host ranges", self.range_column("name_id"), names, "names")
        _check_ids("host ranges", self.range_column("thread"), threads, "threads")
        _check_order("work", self.column("start_ns"), self.column("end_ns"))
        _check_order("host ranges", self.range_column("start_ns"), self.range_column("end_ns"))

    @classmethod
    def from_recording(
        cls, batch: RecordedWork, ranges: HostRanges | None = None, tokens: int = 0
    ) -> "Timeline":
        """Put together what the device's recorder and the host's ranges gave, of this process."""
        return cls(
            work=np.ascontiguousarray(batch.columns, dtype=np.int64),
            names=tuple(batch.names),
            ranges=_no_ranges() if ranges is None else ranges,
            dropped_work=batch.dropped,
            tokens=tokens,
        )

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """One column of ``work``, by its name in ``WORK_COLUMNS``."""
        return self.work[:, WORK_COLUMNS.index(name)]

    def range_column(self, name: str) -> npt.NDArray[np.int64]:
        """One column of the host's ranges, by its name in ``RANGE_COLUMNS``."""
        return self.ranges.columns[:, RANGE_COLUMNS.index(name)]

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that executed work, ascending."""
        return tuple(int(device) for device in np.unique(self.column("device")))

    @property
    def events(self) -> int:
        """How many works and ranges it holds."""
        return len(self.work) + len(self.ranges.columns)

    @property
    def bounds_ns(self) -> tuple[int, int]:
        """When the first thing in it was submitted or began, and when the last ended; (0, 0) if
        there is none.
        """
        submitted = self.column("submit_ns")
        starts = (
            submitted[submitted > 0],
            self.column("start_ns"),
            self.range_column("start_ns"),
        )
        ends = (self.column("end_ns"), self.range_column("end_ns"))
        return (
            min((int(column.min()) for column in starts if len(column)), default=0),
            max((int(column.max()) for column in ends if len(column)), default=0),
        )

    @property
    def is_empty(self) -> bool:
        """Whether it holds neither work nor ranges, nor has forgotten any."""
        forgotten = self.dropped_work + self.ranges.dropped
        return self.events == forgotten == 0

    def is_busy_work(self) -> npt.NDArray[np.bool_]:
        """Which rows of ``work`` keep a device busy: all but waits."""
        is_busy: npt.NDArray[np.bool_] = self.column("kind") != WAIT_KIND
        return is_busy

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline to one file; see ``gapless.profile.timeline_file.save``."""
        from gapless.profile import timeline_file

        timeline_file.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Timeline":
        """Read such a file; see ``gapless.profile.timeline_file.load``."""
        from gapless.profile import timeline_file

        return timeline_file.load(path)


def _check_table(what: str, table: npt.NDArray[np.int64], width: int) -> None:
    if table.ndim != 2 or table.shape[1] != width or table.dtype != np.int64:
        raise TimelineError(
            f"{what}: an int64 array [n, {width}] is needed, not {table.dtype} {list(table.shape)}"
        )


def _check_ids(what: str, ids: npt.NDArray[np.int64], limit: int, of: str) -> None:
    wrong = np.flatnonzero((ids < 0) | (ids >= limit))
    if len(wrong):
        raise TimelineError(
            f"{what}: row {wrong[0]} has id {ids[wrong[0]]}, but there are {limit} {of}"
        )


def _check_order(what: str, start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> None:
    wrong = np.flatnonzero(end < start)
    if len(wrong):
        row = wrong[0]
        raise TimelineError(
            f"{what}: row {row} ends at {end[row]} ns, before its start at {start[row]} ns"
        )
