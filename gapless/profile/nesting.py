"""Ranges that nest, one thread's or one stream's, told apart by who is innermost when."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gapless.profile.intervals import Ints


def outermost_first(start: Ints, end: Ints) -> Ints:
    """The order in which nested ranges open: by start, and the longer of two first.

    Of two that start and end together the one recorded later, which closed later, is the outer.
    """
    order: Ints = np.lexsort((-np.arange(len(start)), -end, start))
    return order


def lanes(start: Ints, end: Ints) -> list[list[int]]:
    """Deal ranges out to lanes so that those of one lane are disjoint or nested.

    One lane is enough for ranges that a thread opened and closed in turn, and for work that a
    stream executed in order; more are needed only where ranges overlap without nesting.

    Returns:
        For each lane the indices of its ranges, in the order in which they open.
    """
    dealt: list[list[int]] = []
    open_ends: list[list[int]] = []
    for index in outermost_first(start, end).tolist():
        begins, ends = int(start[index]), int(end[index])
        for lane, stack in zip(dealt, open_ends, strict=True):
            while stack and stack[-1] <= begins:
                stack.pop()
            if not stack or ends <= stack[-1]:
                lane.append(index)
                stack.append(ends)
                break
        else:
            dealt.append([index])
            open_ends.append([ends])
    return dealt


def innermost(start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Cut one thread's ranges into pieces that belong to the range that is innermost there.

    Ranges that overlap without nesting, which one thread cannot produce, are cut at the start of
    the later one.

    Returns:
        Starts, ends and the range's index for each piece; ascending, disjoint, none empty.
    """
    starts: list[int] = []
    ends: list[int] = []
    owners: list[int] = []

    def add(begins: int, until: int, owner: int) -> None:
        if until > begins:
            starts.append(begins)
            ends.append(until)
            owners.append(owner)

    stack: list[int] = []
    now = 0

    def close_until(moment: int) -> None:
        nonlocal now
        while stack and end[stack[-1]] <= moment:
            owner = stack.pop()
            add(now, int(end[owner]), owner)
            now = max(now, int(end[owner]))

    for index in outermost_first(start, end).tolist():
        begins = int(start[index])
        close_until(begins)
        if stack:
            add(now, begins, stack[-1])
        now = max(now, begins)
        stack.append(index)
    if stack:
        close_until(int(end.max()))
    as_ints = [np.array(piece, dtype=np.int64) for piece in (starts, ends, owners)]
    return as_ints[0], as_ints[1], as_ints[2]


class Bracket(NamedTuple):
    """Where a range opens or closes."""

    time_ns: int
    row: int
    opens: bool


def brackets(start: Ints, end: Ints, lane: Sequence[int]) -> Iterator[Bracket]:
    """Open and close the ranges of one lane in turn, so that each closes inside the one around."""
    stack: list[int] = []
    for index in lane:
        while stack and end[stack[-1]] <= start[index]:
            yield Bracket(int(end[stack[-1]]), stack.pop(), False)
        yield Bracket(int(start[index]), index, True)
        stack.append(index)
    while stack:
        yield Bracket(int(end[stack[-1]]), stack.pop(), False)
