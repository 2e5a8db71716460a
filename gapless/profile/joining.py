"""Parts of one process's recording, taken out one after another, as one timeline."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gapless.profile.intervals import Ints
from gapless.profile.ranges import RANGE_COLUMNS, HostRanges, HostThread
from gapless.profile.timeline import WORK_COLUMNS, Timeline

_Entry = TypeVar("_Entry")
_NAME = WORK_COLUMNS.index("name_id")
_RANGE_NAME, _RANGE_THREAD = RANGE_COLUMNS.index("name_id"), RANGE_COLUMNS.index("thread")


def join(parts: Sequence[Timeline], capacity: int) -> Timeline:
    """Join the parts, of which there is at least one, keeping the bounds of the buffers.

    Of each stream's work, and of the ranges of the host, the newest ``capacity`` are kept, and the
    older ones are counted as dropped.
    """
    if len(parts) == 1:
        return parts[0]
    names: dict[str, int] = {}
    range_names: dict[str, int] = {}
    threads: dict[HostThread, int] = {}
    works, marks = [], []
    for part in parts:
        work, columns = part.work.copy(), part.ranges.columns.copy()
        work[:, _NAME] = _renumber(part.names, names)[work[:, _NAME]]
        columns[:, _RANGE_NAME] = _renumber(part.ranges.names, range_names)[columns[:, _RANGE_NAME]]
        thread = _renumber(part.ranges.threads, threads)[columns[:, _RANGE_THREAD]]
        columns[:, _RANGE_THREAD] = thread
        works.append(work)
        marks.append(columns)
    work, columns = np.concatenate(works), np.concatenate(marks)
    kept = _newest_per_stream(work, capacity)
    columns_kept = columns[-capacity:]
    return replace(
        parts[-1],
        work=work[kept],
        names=tuple(names),
        ranges=HostRanges(
            columns_kept,
            tuple(range_names),
            tuple(threads),
            sum(part.ranges.dropped for part in parts) + len(columns) - len(columns_kept),
        ),
        dropped_work=sum(part.dropped_work for part in parts) + len(work) - int(kept.sum()),
        tokens=sum(part.tokens for part in parts),
    )


def _renumber(entries: Sequence[_Entry], table: dict[_Entry, int]) -> Ints:
    """Where each entry is in the common table, to which new ones are added."""
    return np.array([table.setdefault(entry, len(table)) for entry in entries], np.int64)


def _newest_per_stream(work: Ints, capacity: int) -> npt.NDArray[np.bool_]:
    kept = np.ones(len(work), np.bool_)
    streams = np.unique(work[:, :2], axis=0)
    for device, stream in streams.tolist():
        rows = np.flatnonzero((work[:, 0] == device) & (work[:, 1] == stream))
        kept[rows[:-capacity]] = False
    return kept
