"""Runs: the stretches of a recording in which a device's steps are numbered once.

A program that generates twice numbers its steps from the beginning twice. In one run a number
stands for one step, so each run is looked at by itself, and time between two runs is no idle gap.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gapless.profile.intervals import Ints
from gapless.profile.timeline import WORK_COLUMNS, Timeline

_STEP = WORK_COLUMNS.index("step")


def split_runs(timeline: Timeline, device: int) -> tuple[Timeline, ...]:
    """One timeline for each run of a device, in their order; none where no step is numbered.

    A run begins where, in the order of submission, the number with which the last one began comes
    again or a smaller one does, after a larger one. Of work that belongs to no step each run gets
    what overlaps it, so that it keeps the device busy; of the host's ranges it gets all.
    """
    rows = np.flatnonzero(timeline.column("device") == device)
    run_of = _run_of(timeline, rows)
    count = int(run_of.max(initial=-1)) + 1
    if count == 1:
        return (replace(timeline, work=timeline.work[rows]),)
    return tuple(_one_run(timeline, rows, run_of, run) for run in range(count))


def _run_of(timeline: Timeline, rows: Ints) -> Ints:
    """The run that each of these rows belongs to; -1 for work of no step, and for waits."""
    submit_ns, start_ns, step = (
        timeline.column(name)[rows] for name in ("submit_ns", "start_ns", "step")
    )
    run_of = np.full(len(rows), -1, np.int64)
    numbered = np.flatnonzero((step >= 0) & timeline.is_busy_work()[rows])
    # What was submitted before the recording began has no such time, and came first.
    order = numbered[np.lexsort((start_ns[numbered], submit_ns[numbered]))]
    run, first, largest = -1, 0, -1
    for row, number in zip(order.tolist(), step[order].tolist(), strict=True):
        if run < 0 or number <= first < largest:
            run, first, largest = run + 1, number, number
        largest = max(largest, number)
        run_of[row] = run
    return run_of


def _one_run(timeline: Timeline, rows: Ints, run_of: Ints, run: int) -> Timeline:
    start_ns, end_ns = (timeline.column(name)[rows] for name in ("start_ns", "end_ns"))
    mine = run_of == run
    begins, ends = start_ns[mine].min(), end_ns[mine].max()
    beside: npt.NDArray[np.bool_] = (start_ns < ends) & (end_ns > begins)
    work = timeline.work[rows[mine | beside]].copy()
    work[~mine[mine | beside], _STEP] = -1
    return replace(timeline, work=work)
