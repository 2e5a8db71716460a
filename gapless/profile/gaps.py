"""Idle gaps: time between two steps in which no stream of the device runs anything.

Streams are united, never added up: a device idles only while all of its streams do. Work nested in
other work (an operator inside a graph) is not counted twice, a wait is not work, and work that
belongs to no step keeps the device busy all the same.
"""

from dataclasses import dataclass
from itertools import chain

import numpy as np

from gapless.profile.causes import Share, share_gaps
from gapless.profile.intervals import Intervals, Ints, holes
from gapless.profile.steps import Steps, StepStats, find_steps, percentile, step_stats
from gapless.profile.timeline import Timeline


@dataclass(frozen=True)
class Gap:
    """What lies between two steps that follow each other.

    ``idle_ns`` is the idle time; 0 where the steps overlap, touch, or other work fills the time
    between them. ``stretches`` are the idle intervals (start, end); ``shares`` divides them among
    what the host did meanwhile, the longest first, and add up to ``idle_ns``.
    """

    before_step: int
    after_step: int
    idle_ns: int
    stretches: tuple[tuple[int, int], ...]
    shares: tuple[Share, ...]

    @property
    def cause(self) -> str:
        """The main cause: what the host did for longer than anything else; empty without idle."""
        return self.shares[0].name if self.shares else ""

    @property
    def cause_ns(self) -> int:
        """For how much of the idle time it did that."""
        return self.shares[0].idle_ns if self.shares else 0


@dataclass(frozen=True)
class Cause:
    """A cause of idle time: in how many gaps it has a share, and what its shares add up to."""

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
    shares = share_gaps(timeline, idle, gap_of, count)
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
            shares=causes,
        )
        for before, after, mine, causes in zip(
            steps.number[:-1].tolist(), steps.number[1:].tolist(), stretches, shares, strict=True
        )
    )


def gap_stats(gaps: tuple[Gap, ...]) -> GapStats:
    """Sum up gaps, of which there is at least one; the costliest cause comes first."""
    idle_us = np.array([gap.idle_ns for gap in gaps]) / 1e3
    share_ns: dict[str, int] = {}
    times: dict[str, int] = {}
    for share in chain.from_iterable(gap.shares for gap in gaps):
        share_ns[share.name] = share_ns.get(share.name, 0) + share.idle_ns
        times[share.name] = times.get(share.name, 0) + 1
    total_us = float(idle_us.sum())
    return GapStats(
        gaps=len(gaps),
        p50_us=percentile(idle_us, 50),
        p99_us=percentile(idle_us, 99),
        max_us=float(idle_us.max()),
        total_us=total_us,
        causes=tuple(
            Cause(name, times[name], ns / 1e3, ns / 10.0 / total_us)
            for name, ns in sorted(share_ns.items(), key=lambda item: -item[1])
        ),
    )


def _idle_stretches(steps: Steps) -> tuple[Intervals, Ints]:
    """Idle intervals between steps, and which pair of steps each of them separates."""
    # A step may still run when the next ones begin, so the end that counts is the latest so far.
    window_start = np.maximum.accumulate(steps.end_ns)[:-1]
    window_end = steps.start_ns[1:]
    is_open = np.flatnonzero(window_end > window_start)
    idle = holes(steps.busy_or_unwanted)
    if len(is_open) == 0 or len(idle.start) == 0:
        nothing = np.empty(0, np.int64)
        return Intervals(nothing, nothing), nothing
    # Windows begin and end where work ends and begins, so that no hole straddles their borders.
    window = np.searchsorted(window_start[is_open], idle.start, side="right") - 1
    inside = (window >= 0) & (idle.end <= window_end[is_open][np.maximum(window, 0)])
    return Intervals(idle.start[inside], idle.end[inside]), is_open[window[inside]]
