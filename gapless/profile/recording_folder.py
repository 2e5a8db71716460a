"""A folder of recordings: one file per process, brought together on one clock."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gapless.errors import UsageError
from gapless.profile.ranges import RANGE_COLUMNS, HostRanges
from gapless.profile.timeline import WORK_COLUMNS, Timeline
from gapless.profile.timeline_file import PREFIX, SUFFIX, load

HOW_TO_RECORD = (
    "record with GAPLESS_INSPECT_ENABLE=1 GAPLESS_INSPECT_OUTPUT_DIR={folder} python PROGRAM"
)
_WORK_TIMES = [WORK_COLUMNS.index(name) for name in ("submit_ns", "start_ns", "end_ns")]
_RANGE_TIMES = [RANGE_COLUMNS.index(name) for name in ("start_ns", "end_ns")]


@dataclass(frozen=True, eq=False)
class ProcessRecording:
    """One recording of one process.

    ``label`` tells it apart from the others of its folder, ``is_shifted`` whether its clock was
    another machine's, and its times were moved by what the two clocks of the wall say.
    """

    path: Path
    label: str
    timeline: Timeline
    is_shifted: bool = False


def load_folder(folder: str | os.PathLike[str]) -> tuple[ProcessRecording, ...]:
    """Load all recordings of a folder, or the one that is this file, in the order of their names.

    Raises:
        UsageError: the folder is not there, cannot be read, or holds no recording.
        TimelineError: a recording is broken, was changed, or is of another version.
    """
    where = Path(folder)
    paths = [where] if where.is_file() else _files(where)
    timelines = [_load(path) for path in paths]
    return _on_one_clock(paths, timelines)


def printable(text: str) -> str:
    """The text without what would steer a terminal; names in recordings may be anybody's."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _files(folder: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        raise UsageError(
            f"the folder {folder} is not there; {HOW_TO_RECORD.format(folder=folder)}"
        ) from None
    except OSError as error:
        raise UsageError(f"the folder {folder} cannot be read ({error.strerror})") from None
    found = [name for name in names if name.startswith(PREFIX) and name.endswith(SUFFIX)]
    if found:
        return [folder / name for name in sorted(found, key=_pid_and_number)]
    if any(name.startswith(f".{PREFIX}") and name.endswith(".partial") for name in names):
        raise UsageError(
            f"the folder {folder} holds only recordings that are being written, or were when their "
            "process was killed; wait, or record again"
        )
    raise UsageError(
        f"the folder {folder} holds no recording ({PREFIX}*{SUFFIX}): no process recorded anything "
        f"into it; {HOW_TO_RECORD.format(folder=folder)}"
    )


def _pid_and_number(name: str) -> tuple[list[int], str]:
    parts = name.removeprefix(PREFIX).removesuffix(SUFFIX).split("-")
    return [int(part) for part in parts if part.isdecimal()], name


def _load(path: Path) -> Timeline:
    try:
        return load(path)
    except OSError as error:
        raise UsageError(f"the recording {path} cannot be read ({error.strerror})") from None


def _on_one_clock(
    paths: Sequence[Path], timelines: Sequence[Timeline]
) -> tuple[ProcessRecording, ...]:
    """Label the recordings, and move those of other machines to the clock of the first."""
    first = timelines[0]
    seen: dict[tuple[str, int], int] = {}
    recordings = []
    for path, timeline in zip(paths, timelines, strict=True):
        key = (timeline.boot_id, timeline.pid)
        seen[key] = seen.get(key, 0) + 1
        label = f"{printable(timeline.process_name)} {timeline.pid}"
        if seen[key] > 1:
            label += f" ({seen[key]})"
        is_shifted = timeline.boot_id != first.boot_id
        if is_shifted:
            timeline = _moved(timeline, timeline.realtime_offset_ns - first.realtime_offset_ns)
        recordings.append(ProcessRecording(path, label, timeline, is_shifted))
    return tuple(recordings)


def _moved(timeline: Timeline, by_ns: int) -> Timeline:
    work, columns = timeline.work.copy(), timeline.ranges.columns.copy()
    for column in _WORK_TIMES:
        # A submission at 0 is one that nobody saw, and stays that.
        work[work[:, column] != 0, column] += by_ns
    columns[:, _RANGE_TIMES] += by_ns
    ranges = timeline.ranges
    moved = HostRanges(columns, ranges.names, ranges.threads, ranges.dropped)
    return replace(
        timeline,
        work=work,
        ranges=moved,
        realtime_offset_ns=timeline.realtime_offset_ns - by_ns,
    )
