import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gapless.profile.intervals import Intervals, covered_ns, holes, overlaps, union
from gapless.profile.nesting import brackets, innermost, lanes

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=20)


def arrays(pairs):
    start = np.array([start for start, _ in pairs], np.int64)
    return Intervals(start, start + np.array([length for _, length in pairs], np.int64))


def instants(start, end):
    """The unit instants that intervals cover."""
    return {t for s, e in zip(start, end, strict=True) for t in range(s, e)}


def disjoint(intervals):
    return bool((intervals.start[1:] > intervals.end[:-1]).all())


@given(spans)
def test_union_covers_the_same_and_is_disjoint(pairs):
    given_, merged = arrays(pairs), union(*arrays(pairs))
    assert instants(*merged) == instants(*given_)
    assert disjoint(merged)
    assert (merged.end >= merged.start).all()


@given(spans)
def test_holes_are_the_rest(pairs):
    merged = union(*arrays(pairs))
    if not pairs:
        return
    whole = set(range(merged.start[0], merged.end[-1]))
    assert instants(*holes(merged)) == whole - instants(*merged)


@given(spans, spans)
def test_covered_counts_instants(pairs, windows):
    merged, (start, end) = union(*arrays(pairs)), arrays(windows)
    busy = instants(*merged)
    expected = [
        len(busy & set(range(s, e))) for s, e in zip(start.tolist(), end.tolist(), strict=True)
    ]
    assert covered_ns(merged, start, end).tolist() == expected


@given(spans, spans)
def test_overlaps_finds_every_pair(left_pairs, right_pairs):
    left, right = union(*arrays(left_pairs)), union(*arrays(right_pairs))
    found = {
        (a, b): t for a, b, t in zip(*(x.tolist() for x in overlaps(left, right)), strict=True)
    }
    expected = {}
    for a in range(len(left.start)):
        for b in range(len(right.start)):
            shared = min(left.end[a], right.end[b]) - max(left.start[a], right.start[b])
            if shared > 0:
                expected[a, b] = shared
    assert found == expected


@given(spans)
def test_lanes_hold_every_range_once_and_nest(pairs):
    start, end = arrays(pairs)
    dealt = lanes(start, end)
    assert sorted(index for lane in dealt for index in lane) == list(range(len(pairs)))
    for lane in dealt:
        opened: list[int] = []
        last = -1
        for bracket in brackets(start, end, lane):
            assert bracket.time_ns >= last
            last = bracket.time_ns
            if bracket.opens:
                opened.append(bracket.row)
            else:
                assert opened.pop() == bracket.row
        assert not opened


nested = st.recursive(
    st.lists(st.integers(0, 3), min_size=1, max_size=1),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=12,
)


def nest(tree, start, found):
    """Lay a tree out as ranges: 1 ns before, between and after its children."""
    now = start + 1
    for child in tree:
        now = nest(child, now, found) + 1 if isinstance(child, list) else now + child
    found.append((start, now))
    return now


@given(nested)
def test_innermost_gives_each_instant_to_the_shortest_range_around_it(tree):
    found: list[tuple[int, int]] = []
    nest(tree, 0, found)
    start, end = (np.array(side, np.int64) for side in zip(*found, strict=True))
    pieces = innermost(start, end)
    owners = {
        t: owner
        for s, e, owner in zip(*(x.tolist() for x in pieces), strict=True)
        for t in range(s, e)
    }
    expected = {}
    for t in range(end.max()):
        around = [i for i, (s, e) in enumerate(found) if s <= t < e]
        expected[t] = min(around, key=lambda i: found[i][1] - found[i][0])
    assert owners == expected
    assert disjoint_or_touching(pieces)


def disjoint_or_touching(pieces):
    start, end, _ = pieces
    return bool((start[1:] >= end[:-1]).all() and (end > start).all())


@given(spans)
def test_innermost_survives_ranges_that_do_not_nest(pairs):
    start, end = arrays(pairs)
    pieces = innermost(start, end)
    assert disjoint_or_touching(pieces)
    assert instants(pieces[0], pieces[1]) == instants(start, end)
