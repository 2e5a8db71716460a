"""Sets of intervals on a time line, as numpy arrays of starts and ends in nanoseconds.

A union is a pair of arrays, ascending and disjoint. An interval whose end is its start is a point.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Parallel arrays: interval ``i`` lasts from ``start[i]`` to ``end[i]``."""

    start: Ints
    end: Ints


def union(start: Ints, end: Ints) -> Intervals:
    """Merge intervals that overlap, nest or touch; the result is ascending and disjoint."""
    if len(start) == 0:
        return Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    latest = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > latest[:-1])))
    last = np.concatenate((first[1:], [len(start)])) - 1
    return Intervals(start[first], latest[last])


def holes(merged: Intervals) -> Intervals:
    """The intervals between the members of a union: one fewer than it has."""
    return Intervals(merged.end[:-1], merged.start[1:])


def covered_ns(merged: Intervals, start: Ints, end: Ints) -> Ints:
    """How much of each interval a union covers."""
    return _covered_before(merged, end) - _covered_before(merged, start)


def _covered_before(merged: Intervals, moment: Ints) -> Ints:
    if len(merged.start) == 0:
        return np.zeros(len(moment), np.int64)
    total = np.concatenate(([0], np.cumsum(merged.end - merged.start)))
    index = np.searchsorted(merged.start, moment, side="right")
    inside = np.maximum(index - 1, 0)
    # What the last interval that began before the moment covers after it.
    beyond = np.where(index > 0, np.maximum(merged.end[inside] - moment, 0), 0)
    return np.asarray(total[index] - beyond, dtype=np.int64)


class Overlaps(NamedTuple):
    """Every pair that overlaps: index in the left set, index in the right set, shared time."""

    left: Ints
    right: Ints
    shared_ns: Ints


def overlaps(left: Intervals, right: Intervals) -> Overlaps:
    """Pair the intervals of two sets, each ascending and disjoint, that share time."""
    low = np.searchsorted(right.end, left.start, side="right")
    high = np.maximum(np.searchsorted(right.start, left.end, side="left"), low)
    count = high - low
    left_index = np.repeat(np.arange(len(left.start)), count)
    # Position within each left interval's run of right neighbours.
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    right_index = np.repeat(low, count) + offset
    shared = np.minimum(left.end[left_index], right.end[right_index]) - np.maximum(
        left.start[left_index], right.start[right_index]
    )
    keep = shared > 0
    return Overlaps(left_index[keep], right_index[keep], shared[keep])
