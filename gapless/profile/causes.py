"""What the host was doing while the device idled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gapless.profile.intervals import Intervals, Ints, overlaps
from gapless.profile.nesting import innermost
from gapless.profile.timeline import Timeline

UNMARKED = "unmarked"
"""The cause of idle time during which the host marked nothing."""


@dataclass(frozen=True, eq=False)
class HostPieces:
    """One thread's ranges, cut so that each piece belongs to the innermost range."""

    thread: int
    when: Intervals
    name_id: Ints


class Share(NamedTuple):
    """For how much of a gap the host did something of this name; never 0."""

    name: str
    idle_ns: int


def host_pieces(timeline: Timeline) -> tuple[HostPieces, ...]:
    """Cut every thread's ranges into pieces, each belonging to the innermost range."""
    thread_of = timeline.range_column("thread")
    pieces = []
    for thread in np.unique(thread_of).tolist():
        rows = np.flatnonzero(thread_of == thread)
        start, end, owner = innermost(
            timeline.range_column("start_ns")[rows], timeline.range_column("end_ns")[rows]
        )
        name_id = timeline.range_column("name_id")[rows][owner]
        pieces.append(HostPieces(thread, Intervals(start, end), name_id))
    return tuple(pieces)


def share_gaps(
    timeline: Timeline, idle: Intervals, gap_of: Ints, gaps: int
) -> tuple[tuple[Share, ...], ...]:
    """Split each gap among the names of what the host did in it, the longest share first.

    A thread does at each moment what its innermost range says. Where threads do several things at
    one moment, it is divided equally between their names; threads that do the same count once, so
    that two that wait side by side do not outweigh one that computes. A moment at which no thread
    marked anything counts as ``UNMARKED``. So the shares of a gap add up to its idle time.

    Args:
        timeline: whose host ranges to look at.
        idle: idle stretches, ascending and disjoint.
        gap_of: the gap that each stretch belongs to, from 0 to ``gaps - 1``.
        gaps: how many gaps there are.
    """
    left_ns = np.zeros(gaps, np.int64)
    np.add.at(left_ns, gap_of, idle.end - idle.start)
    names = timeline.ranges.names
    shares: list[list[Share]] = [[] for _ in range(gaps)]
    marked = _marked(idle, host_pieces(timeline))
    if len(marked.name_id):
        # One key per gap and name; what was done twice in a gap adds up.
        key = gap_of[marked.stretch] * len(names) + marked.name_id
        keys, where = np.unique(key, return_inverse=True)
        shared_ns = np.zeros(len(keys), np.int64)
        np.add.at(shared_ns, where, marked.shared_ns)
        for of, share_ns in zip(keys.tolist(), shared_ns.tolist(), strict=True):
            if share_ns:
                shares[of // len(names)].append(Share(names[of % len(names)], share_ns))
        np.subtract.at(left_ns, keys // len(names), shared_ns)
    for gap in np.flatnonzero(left_ns).tolist():
        shares[gap].append(Share(UNMARKED, int(left_ns[gap])))
    # Of two of one length the first stays first, so that a mark is preferred to the lack of one.
    return tuple(tuple(sorted(each, key=lambda share: -share.idle_ns)) for each in shares)


class _Marked(NamedTuple):
    """Idle time that was marked: of which idle stretch, under which name, and how much."""

    stretch: Ints
    name_id: Ints
    shared_ns: Ints


def _marked(idle: Intervals, pieces: Sequence[HostPieces]) -> _Marked:
    nothing = np.empty(0, np.int64)
    parts = [(nothing, nothing, nothing)]  # name, start and end of what lies in an idle stretch
    for piece in pieces:
        pairs = overlaps(idle, piece.when)
        start = np.maximum(idle.start[pairs.left], piece.when.start[pairs.right])
        parts.append((piece.name_id[pairs.right], start, start + pairs.shared_ns))
    name_id, start, end = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    # Between two moments at which anything begins or ends nothing changes.
    moments = np.unique(np.concatenate((start, end)))
    first = np.searchsorted(moments, start)
    segments = np.searchsorted(moments, end) - first
    offset = np.arange(segments.sum()) - np.repeat(np.cumsum(segments) - segments, segments)
    # A name once per segment, whichever threads it is of; in the order of the segments.
    pair = np.stack((np.repeat(first, segments) + offset, np.repeat(name_id, segments)), axis=1)
    segment, of_segment = np.unique(pair, axis=0).T
    if len(segment) == 0:
        return _Marked(nothing, nothing, nothing)
    _, begins, sharing = np.unique(segment, return_index=True, return_counts=True)
    rank = np.arange(len(segment)) - np.repeat(begins, sharing)
    sharing = np.repeat(sharing, sharing)
    length_ns = moments[segment + 1] - moments[segment]
    # Equal to the nanosecond, and together neither more nor less than there is.
    shared_ns = length_ns * (rank + 1) // sharing - length_ns * rank // sharing
    stretch = np.searchsorted(idle.start, moments[segment], side="right") - 1
    return _Marked(stretch, of_segment, shared_ns)
