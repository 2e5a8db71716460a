"""Steps on one device: when each ran, how long it took, and how busy the device was meanwhile."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gapless.profile.intervals import Intervals, Ints, covered_ns, union
from gapless.profile.timeline import Timeline, TimelineError

NOTHING_WANTED = "no requests"
"""A host range in which there was nothing for the device to do: a server without requests."""


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of one device in the order in which they began.

    Attributes:
        device: the device's index.
        number: each step's number, as given to the recorder.
        start_ns: when its first work began.
        end_ns: when its last work ended, whatever the stream.
        busy: when any stream of the device ran anything, of a step or not.
        unwanted: when a host range said that there was nothing for it to do; no gap is there.
        warmup: how many earlier steps were left out.
    """

    device: int
    number: Ints
    start_ns: Ints
    end_ns: Ints
    busy: Intervals
    unwanted: Intervals
    warmup: int

    @property
    def busy_or_unwanted(self) -> Intervals:
        """All but the time in which the device could have run something, and did not."""
        return union(
            np.concatenate((self.busy.start, self.unwanted.start)),
            np.concatenate((self.busy.end, self.unwanted.end)),
        )


@dataclass(frozen=True)
class StepStats:
    """Steps of one device, in microseconds.

    A step's time runs from its first work's start to its last work's end on the device. Its
    period runs to the start of the next step: what a user waits per token. Busy is the union over
    streams within ``span_us``, which runs from the first step's start to the last end of a step,
    without ``unwanted_us``, in which the device idled because there was nothing for it to do.
    """

    device: int
    steps: int
    warmup: int
    step_p50_us: float
    step_p99_us: float
    period_p50_us: float
    period_p99_us: float
    span_us: float
    unwanted_us: float
    busy_us: float
    busy_percent: float


def find_steps(timeline: Timeline, device: int | None = None, warmup: int = 0) -> Steps:
    """Find the steps of a device, without the first ``warmup`` of them.

    Args:
        timeline: where to look.
        device: which device; may be left out where the timeline has only one.
        warmup: how many steps to leave out at the beginning.

    Raises:
        TimelineError: no such device, or fewer than two steps are left (a gap needs two).
        ValueError: ``warmup`` is negative.
    """
    if warmup < 0:
        raise ValueError(f"warmup is {warmup} steps; it cannot be negative")
    device = _choose_device(timeline, device)
    mine = timeline.is_busy_work() & (timeline.column("device") == device)
    step, start, end = (timeline.column(name)[mine] for name in ("step", "start_ns", "end_ns"))
    number, start_ns, end_ns = _bounds_by_step(step, start, end)
    if len(number) - warmup < 2:
        raise TimelineError(
            f"device {device} ran {len(number)} steps, of which {warmup} are left out as warm-up; "
            "gaps need 2 more than that: record more steps, or number them with set_step()"
        )
    kept = slice(warmup, None)
    busy = union(start, end)
    unwanted = _unwanted(timeline)
    return Steps(device, number[kept], start_ns[kept], end_ns[kept], busy, unwanted, warmup)


def step_stats(steps: Steps) -> StepStats:
    """Sum up the steps."""
    step_us = (steps.end_ns - steps.start_ns) / 1e3
    period_us = np.diff(steps.start_ns) / 1e3
    span = Intervals(steps.start_ns[:1], np.array([steps.end_ns.max()]))
    busy_ns = int(covered_ns(steps.busy, span.start, span.end)[0])
    either_ns = int(covered_ns(steps.busy_or_unwanted, span.start, span.end)[0])
    unwanted_ns = either_ns - busy_ns
    span_ns = int(span.end[0] - span.start[0]) - unwanted_ns
    return StepStats(
        device=steps.device,
        steps=len(steps.number),
        warmup=steps.warmup,
        step_p50_us=percentile(step_us, 50),
        step_p99_us=percentile(step_us, 99),
        period_p50_us=percentile(period_us, 50),
        period_p99_us=percentile(period_us, 99),
        span_us=span_ns / 1e3,
        unwanted_us=unwanted_ns / 1e3,
        busy_us=busy_ns / 1e3,
        busy_percent=100.0 * busy_ns / span_ns if span_ns else 100.0,
    )


def percentile(values: npt.NDArray[np.float64], percent: float) -> float:
    """Percentile with linear interpolation."""
    return float(np.percentile(values, percent))


def _choose_device(timeline: Timeline, device: int | None) -> int:
    there = timeline.devices
    if device is None and len(there) == 1:
        return there[0]
    if device in there and device is not None:
        return device
    listed = ", ".join(map(str, there))
    if not there:
        raise TimelineError("the timeline holds no work of any device; record while it computes")
    if device is None:
        raise TimelineError(f"the timeline holds work of devices {listed}; say which one")
    raise TimelineError(f"the timeline holds no work of device {device}, only of {listed}")


def _unwanted(timeline: Timeline) -> Intervals:
    names = timeline.ranges.names
    if NOTHING_WANTED not in names:
        nothing = np.empty(0, np.int64)
        return Intervals(nothing, nothing)
    mine = timeline.range_column("name_id") == names.index(NOTHING_WANTED)
    return union(timeline.range_column("start_ns")[mine], timeline.range_column("end_ns")[mine])


def _bounds_by_step(step: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    inside = step >= 0
    step, start, end = step[inside], start[inside], end[inside]
    if len(step) == 0:
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing
    by_step = np.argsort(step, kind="stable")
    number, first = np.unique(step[by_step], return_index=True)
    start_ns = np.minimum.reduceat(start[by_step], first)
    end_ns = np.maximum.reduceat(end[by_step], first)
    order = np.argsort(start_ns, kind="stable")
    return number[order], start_ns[order], end_ns[order]
