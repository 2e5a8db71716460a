"""The timeline of one process: what its devices executed and what its host did meanwhile.

It needs no device: it may be built from a recording, loaded from a file, or made by hand.
"""

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from gapless.errors import GaplessError
from gapless.profile.ranges import RANGE_COLUMNS, HostRanges, HostThread

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

FORMAT = "gapless-timeline"
FORMAT_VERSION = 1
# A header is a few names; more than this is not one of ours.
_MAX_HEADER_BYTES = 64 << 20


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
        process_name: what the process was started as.
        realtime_offset_ns: what to add to a time here for nanoseconds since 1970.

    Raises:
        TimelineError: an array has another shape or type, an id points nowhere, or something
            ends before it starts.
    """

    work: npt.NDArray[np.int64]
    names: tuple[str, ...]
    ranges: HostRanges = field(default_factory=_no_ranges)
    dropped_work: int = 0
    pid: int = field(default_factory=os.getpid)
    process_name: str = field(default_factory=lambda: Path(sys.argv[0] or "python").name)
    realtime_offset_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())

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
    def from_recording(cls, batch: RecordedWork, ranges: HostRanges | None = None) -> "Timeline":
        """Put together what the device's recorder and the host's ranges gave, of this process."""
        return cls(
            work=np.ascontiguousarray(batch.columns, dtype=np.int64),
            names=tuple(batch.names),
            ranges=_no_ranges() if ranges is None else ranges,
            dropped_work=batch.dropped,
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

    def is_busy_work(self) -> npt.NDArray[np.bool_]:
        """Which rows of ``work`` keep a device busy: all but waits."""
        is_busy: npt.NDArray[np.bool_] = self.column("kind") != WAIT_KIND
        return is_busy

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline to one file, which appears only when it is whole.

        Raises:
            OSError: the file cannot be written.
        """
        header = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "pid": self.pid,
            "process_name": self.process_name,
            "realtime_offset_ns": self.realtime_offset_ns,
            "names": self.names,
            "dropped_work": self.dropped_work,
            "range_names": self.ranges.names,
            "threads": [(thread.native_id, thread.name) for thread in self.ranges.threads],
            "dropped_ranges": self.ranges.dropped,
        }
        target = Path(path)
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                np.savez_compressed(
                    file,
                    header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
                    work=self.work,
                    ranges=self.ranges.columns,
                )
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Timeline":
        """Read a file that ``save`` wrote; nothing in it is executed.

        Raises:
            OSError: the file is not there or cannot be read.
            TimelineError: the file is broken, is not a timeline, or is of a newer version.
        """
        with Path(path).open("rb") as file:
            try:
                # Never pickled: a timeline may come from somebody else's machine.
                with np.load(file, allow_pickle=False) as archive:
                    header = _read_header(archive["header"], path)
                    work, columns = archive["work"], archive["ranges"]
            except TimelineError:
                raise
            except Exception as error:  # whatever zipfile, zlib, numpy and json make of damage
                raise TimelineError(
                    f"{os.fspath(path)} is not a whole timeline ({error}); record it again"
                ) from error
        return _from_header(header, work, columns, path)


def _read_header(raw: npt.NDArray[np.uint8], path: str | os.PathLike[str]) -> dict[str, object]:
    if raw.dtype != np.uint8 or raw.nbytes > _MAX_HEADER_BYTES:
        raise TimelineError(f"{os.fspath(path)} has no timeline header; record it again")
    header = json.loads(raw.tobytes())
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise TimelineError(f"{os.fspath(path)} is not a {FORMAT} file")
    if header.get("version") != FORMAT_VERSION:
        raise TimelineError(
            f"{os.fspath(path)} is a timeline of version {header.get('version')}; this gapless "
            f"reads version {FORMAT_VERSION}: use the gapless that recorded it, or record it again"
        )
    return header


def _from_header(
    header: dict[str, object],
    work: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    path: str | os.PathLike[str],
) -> Timeline:
    def integer(key: str) -> int:
        value = header[key]
        if type(value) is not int:
            raise TypeError(f"{key} is {value!r}, not an integer")
        return value

    def strings(key: str) -> tuple[str, ...]:
        value = header[key]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise TypeError(f"{key} is not a list of strings")
        return tuple(value)

    try:
        pairs = cast(list[tuple[int, str]], header["threads"])
        threads = tuple(HostThread(int(native_id), str(name)) for native_id, name in pairs)
        return Timeline(
            work=work,
            names=strings("names"),
            ranges=HostRanges(columns, strings("range_names"), threads, integer("dropped_ranges")),
            dropped_work=integer("dropped_work"),
            pid=integer("pid"),
            process_name=str(header["process_name"]),
            realtime_offset_ns=integer("realtime_offset_ns"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TimelineError(
            f"{os.fspath(path)} contradicts itself ({error}); record it again"
        ) from error


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
