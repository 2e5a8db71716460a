"""Timelines made by hand."""

from collections.abc import Sequence

import numpy as np

from gapless.profile import HostRanges, HostThread, Timeline
from gapless.profile.ranges import RANGE_COLUMNS
from gapless.profile.timeline import WAIT_KIND, WORK_COLUMNS

# stream, step, start_ns, end_ns
WorkRow = tuple[int, int, int, int]
# thread, name, start_ns, end_ns
RangeRow = tuple[int, str, int, int]


def timeline(
    work: Sequence[WorkRow],
    host: Sequence[RangeRow] = (),
    *,
    waits: Sequence[WorkRow] = (),
    device: int = 0,
    queued_ns: int = 0,
    dropped: int = 0,
) -> Timeline:
    rows = [(row, 0) for row in work] + [(row, WAIT_KIND) for row in waits]
    table = [
        (device, stream, number, step, kind > 0, kind, start - queued_ns, start, end)
        for number, ((stream, step, start, end), kind) in enumerate(rows, 1)
    ]
    names = tuple(dict.fromkeys(name for _, name, _, _ in host))
    threads = tuple(HostThread(100 + i, f"thread {i}") for i in range(3)) if host else ()
    marks = [(thread, -1, names.index(name), start, end) for thread, name, start, end in host]
    return Timeline(
        work=np.array(table, np.int64).reshape(-1, len(WORK_COLUMNS)),
        names=("work", "wait"),
        ranges=HostRanges(
            np.array(marks, np.int64).reshape(-1, len(RANGE_COLUMNS)), names, threads, 0
        ),
        dropped_work=dropped,
        pid=42,
        process_name="handmade",
        realtime_offset_ns=0,
    )
