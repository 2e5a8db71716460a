"""Idle gaps: time between two steps in which no stream of the device runs anything.

Streams are united, never added up: a device idles only while all of its streams do. Work nested in
other work (an operator inside a graph) is not counted twice, a wait is not work, and work that
belongs to no step keeps the device busy all the same.
"""

from dataclasses import dataclass

import numpy as np

from gapless.profile.causes import find_causes
from gapless.profile.intervals import Intervals, Ints, holes
from gapless.profile.steps import Steps, StepStats, find_steps, percentile, step_stats
from gapless.profile.timeline import Timeline


@dataclass(frozen=True)
class Gap:
    """What lies between two steps that follow each other.

    ``idle_ns`` is the idle time; 0 where the steps overlap, touch, or other work fills the time
    between them. ``stretches`` are the idle intervals (start, end); ``cause`` is what the host did
    for ``cause_ns`` of them, longer than anything else, and empty where nothing idled.
    """

    before_step: int
    after_step: int
    idle_ns: int
    stretches: tuple[tuple[int, int], ...]
    cause: str
    cause_ns: int


@dataclass(frozen=True)
class Cause:
    """A cause of idle time: how much of it the gaps that it is blamed for add up to."""

    name: str
    gaps: int
    total_us: float
    share_percent: float


@dataclass(frozen=True)
class GapStats:
    """Idle gaps of one device in microseconds; every pair of steps counts, also those without."""

    gaps: int
    p50_us: float
    p99_us: float
    max_us: float
    total_us: float
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class IdleReport:
    """How one device spent its time between two steps and during them."""

    steps: StepStats
    idle: GapStats
    gaps: tuple[Gap, ...]
    dropped_work: int

    @property
    def is_complete(self) -> bool:
        """Whether the recorder kept everything; where it did not, gaps may be too long."""
        return self.dropped_work == 0


def analyse(timeline: Timeline, device: int | None = None, warmup: int = 0) -> IdleReport:
    """Find a device's steps and the idle gaps between them.

    Args:
        timeline: a recording, or one made by hand.
        device: which device; may be left out where the timeline has only one.
        warmup: how many steps to leave out at the beginning.

    Raises:
        TimelineError: no such device, or fewer than two steps are left.
        ValueError: ``warmup`` is negative.
    """
    steps = find_steps(timeline, device, warmup)
    gaps = find_gaps(timeline, steps)
    return IdleReport(step_stats(steps), gap_stats(gaps), gaps, timeline.dropped_work)


def find_gaps(timeline: Timeline, steps: Steps) -> tuple[Gap, ...]:
    """One gap for each pair of steps that follow each other, in their order."""
    count = len(steps.number) - 1
    idle, gap_of = _idle_stretches(steps)
    causes = find_causes(timeline, idle, gap_of, count)
    stretches: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for gap, start, end in zip(
        gap_of.tolist(), idle.start.tolist(), idle.end.tolist(), strict=True
    ):
        stretches[gap].append((start, end))
    return tuple(
        Gap(
            before_step=before,
            after_step=after,
            idle_ns=sum(end - start for start, end in mine),
            stretches=tuple(mine),
            cause=cause if mine else "",
            cause_ns=shared,
        )
        for before, after, mine, cause, shared in zip(
            steps.number[:-1].tolist(),
            steps.number[1:].tolist(),
            stretches,
            causes.name,
            causes.shared_ns.tolist(),
            strict=True,
        )
    )


def gap_stats(gaps: tuple[Gap, ...]) -> GapStats:
    """Sum up gaps, of which there is at least one; the costliest cause comes first."""
    idle_us = np.array([gap.idle_ns for gap in gaps]) / 1e3
    blamed_us: dict[str, float] = {}
    times: dict[str, int] = {}
    for gap in gaps:
        if gap.idle_ns:
            blamed_us[gap.cause] = blamed_us.get(gap.cause, 0.0) + gap.idle_ns / 1e3
            times[gap.cause] = times.get(gap.cause, 0) + 1
    total_us = float(idle_us.sum())
    return GapStats(
        gaps=len(gaps),
        p50_us=percentile(idle_us, 50),
        p99_us=percentile(idle_us, 99),
        max_us=float(idle_us.max()),
        total_us=total_us,
        causes=tuple(
            Cause(name, times[name], us, 100.0 * us / total_us)
            for name, us in sorted(blamed_us.items(), key=lambda item: -item[1])
        ),
    )


def _idle_stretches(steps: Steps) -> tuple[Intervals, Ints]:
    """Idle intervals between steps, and which pair of steps each of them separates."""
    # A step may still run when the next ones begin, so the end that counts is the latest so far.
    window_start = np.maximum.accumulate(steps.end_ns)[:-1]
    window_end = steps.start_ns[1:]
    is_open = np.flatnonzero(window_end > window_start)
    idle = holes(steps.busy)
    if len(is_open) == 0 or len(idle.start) == 0:
        nothing = np.empty(0, np.int64)
        return Intervals(nothing, nothing), nothing
    # Windows begin and end where work ends and begins, so that no hole straddles their borders.
    window = np.searchsorted(window_start[is_open], idle.start, side="right") - 1
    inside = (window >= 0) & (idle.end <= window_end[is_open][np.maximum(window, 0)])
    return Intervals(idle.start[inside], idle.end[inside]), is_open[window[inside]]
