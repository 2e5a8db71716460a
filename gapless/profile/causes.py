"""What the host was doing while the device idled."""

from dataclasses import dataclass

import numpy as np

from gapless.profile.intervals import Intervals, Ints, covered_ns, overlaps, union
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


@dataclass(frozen=True, eq=False)
class IdleCauses:
    """For each gap the name that covers most of it, and for how long it does."""

    name: tuple[str, ...]
    shared_ns: Ints


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


def find_causes(timeline: Timeline, idle: Intervals, gap_of: Ints, gaps: int) -> IdleCauses:
    """Name each gap by what the host did for the longest part of it.

    A thread is credited with a moment once, under its innermost range. Threads are compared, not
    added up: two that wait side by side do not outweigh one that computes. Time in which no thread
    marked anything counts as ``UNMARKED``.

    Args:
        timeline: whose host ranges to look at.
        idle: idle stretches, ascending and disjoint.
        gap_of: the gap that each stretch belongs to, from 0 to ``gaps - 1``.
        gaps: how many gaps there are.
    """
    names = timeline.ranges.names
    pieces = host_pieces(timeline)
    idle_ns = np.zeros(gaps, np.int64)
    np.add.at(idle_ns, gap_of, idle.end - idle.start)
    if not pieces:
        return IdleCauses((UNMARKED,) * gaps, idle_ns)

    marked = union(
        np.concatenate([piece.when.start for piece in pieces]),
        np.concatenate([piece.when.end for piece in pieces]),
    )
    marked_ns = np.zeros(gaps, np.int64)
    np.add.at(marked_ns, gap_of, covered_ns(marked, idle.start, idle.end))
    best_ns = idle_ns - marked_ns
    best_name = np.full(gaps, -1)
    for piece in pieces:
        pairs = overlaps(idle, piece.when)
        # One key per gap and name; what a thread did twice in a gap adds up.
        key = gap_of[pairs.left] * len(names) + piece.name_id[pairs.right]
        keys, where = np.unique(key, return_inverse=True)
        shared_ns = np.zeros(len(keys), np.int64)
        np.add.at(shared_ns, where, pairs.shared_ns)
        ascending = np.argsort(shared_ns, kind="stable")
        # Of several assignments to one gap the last, which is the longest, stays.
        thread_ns = np.zeros(gaps, np.int64)
        thread_name = np.full(gaps, -1)
        gap_of_key = keys // max(len(names), 1)
        thread_ns[gap_of_key[ascending]] = shared_ns[ascending]
        thread_name[gap_of_key[ascending]] = (keys % max(len(names), 1))[ascending]
        # A mark is preferred to the lack of one.
        ties = (thread_ns == best_ns) & (thread_ns > 0) & (best_name < 0)
        better = (thread_ns > best_ns) | ties
        best_ns = np.where(better, thread_ns, best_ns)
        best_name = np.where(better, thread_name, best_name)
    named = tuple(UNMARKED if name < 0 else names[name] for name in best_name.tolist())
    return IdleCauses(named, best_ns)
