from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.profile import TimelineError, analyse
from gapless.profile.causes import UNMARKED
from gapless.profile.steps import NOTHING_WANTED

from .handmade import timeline


def idle(report):
    return [gap.idle_ns for gap in report.gaps]


def test_a_gap_is_what_no_stream_fills():
    # Stream 1 fills part of the gap between steps 0 and 1, and all of that between 1 and 2.
    report = analyse(timeline([(0, 0, 0, 10), (0, 1, 30, 40), (0, 2, 50, 60), (1, -1, 15, 20),
                               (1, -1, 38, 52)]))  # fmt: skip
    assert idle(report) == [15, 0]
    assert report.gaps[0].stretches == ((10, 15), (20, 30))
    assert report.steps.busy_us == pytest.approx((10 + 5 + 30) / 1e3)
    assert report.steps.busy_percent == pytest.approx(75.0)


def test_nested_work_counts_once():
    nested = [(0, 0, 0, 10), (0, 0, 2, 8), (0, 0, 3, 4), (0, 1, 12, 20)]
    report = analyse(timeline(nested))
    assert idle(report) == [2]
    assert report.steps.busy_us == pytest.approx(18 / 1e3)


def test_waits_are_not_busy():
    report = analyse(timeline([(0, 0, 0, 10), (0, 1, 30, 40)], waits=[(1, -1, 5, 35)]))
    assert idle(report) == [20]


def test_idle_inside_a_step_is_not_a_gap_but_not_busy_either():
    report = analyse(timeline([(0, 0, 0, 10), (0, 0, 20, 30), (0, 1, 30, 40)]))
    assert idle(report) == [0]
    assert report.steps.busy_percent == pytest.approx(75.0)
    assert report.idle.causes == ()
    assert report.gaps[0].cause == ""


def test_time_in_which_nothing_was_wanted_is_no_gap():
    work = [(0, 0, 0, 10), (0, 1, 100, 110), (0, 2, 120, 130)]
    report = analyse(timeline(work, [(0, NOTHING_WANTED, 15, 95), (0, "wait", 10, 130)]))
    assert idle(report) == [5 + 5, 10]
    assert report.gaps[0].stretches == ((10, 15), (95, 100))
    assert report.steps.unwanted_us == pytest.approx(80 / 1e3)
    assert report.steps.span_us == pytest.approx((130 - 80) / 1e3)
    assert report.steps.busy_percent == pytest.approx(60.0)
    assert NOTHING_WANTED not in [cause.name for cause in report.idle.causes]


def test_work_that_nobody_wanted_is_busy_all_the_same():
    report = analyse(timeline([(0, 0, 0, 10), (0, 1, 30, 40)], [(0, NOTHING_WANTED, 5, 35)]))
    assert idle(report) == [0]
    assert report.steps.busy_us == pytest.approx(20 / 1e3)
    assert report.steps.busy_percent == pytest.approx(100.0)


def test_a_step_that_outlasts_the_next_leaves_no_gap():
    report = analyse(timeline([(0, 0, 0, 100), (1, 1, 10, 20), (1, 2, 50, 60), (0, 3, 110, 120)]))
    assert idle(report) == [0, 0, 10]


def test_steps_are_ordered_by_time_not_number():
    report = analyse(timeline([(0, 7, 0, 10), (0, 3, 15, 20)]))
    assert (report.gaps[0].before_step, report.gaps[0].after_step) == (7, 3)


def test_warm_up_is_left_out():
    work = [(0, step, 100 * step, 100 * step + 50 + step) for step in range(6)]
    report = analyse(timeline(work), warmup=2)
    assert report.steps.steps == 4
    assert report.steps.warmup == 2
    assert report.steps.span_us == pytest.approx((555 - 200) / 1e3)
    assert idle(report) == [48, 47, 46]


def test_figures():
    work = [(0, 0, 0, 4000), (0, 1, 5000, 10_000), (0, 2, 13_000, 19_000)]
    report = analyse(timeline(work, [(0, "wait", 0, 20_000)]))
    steps, gaps = report.steps, report.idle
    assert (steps.step_p50_us, steps.period_p50_us) == (5.0, 6.5)
    assert (gaps.gaps, gaps.p50_us, gaps.max_us, gaps.total_us) == (2, 2.0, 3.0, 4.0)
    assert gaps.p99_us == pytest.approx(2.98)
    assert [(cause.name, cause.gaps, cause.total_us) for cause in gaps.causes] == [("wait", 2, 4.0)]
    assert gaps.causes[0].share_percent == pytest.approx(100)


def test_the_cause_is_the_innermost_range_that_covers_most():
    host = [(0, "outer", 0, 100), (0, "short", 12, 15), (0, "long", 15, 28)]
    report = analyse(timeline([(0, 0, 0, 10), (0, 1, 30, 40)], host))
    assert (report.gaps[0].cause, report.gaps[0].cause_ns) == ("long", 13)


def test_one_thread_may_do_the_same_thing_twice():
    host = [(0, "twice", 10, 16), (0, "once", 16, 24), (0, "twice", 24, 30)]
    report = analyse(timeline([(0, 0, 0, 10), (0, 1, 30, 40)], host))
    assert (report.gaps[0].cause, report.gaps[0].cause_ns) == ("twice", 12)


def test_threads_do_not_add_up():
    host = [(0, "wait", 10, 19), (1, "wait", 10, 19), (2, "compute", 10, 30)]
    report = analyse(timeline([(0, 0, 0, 10), (0, 1, 30, 40)], host))
    assert report.gaps[0].cause == "compute"
    # Both names while both are open, and the one that is left alone after that.
    assert report.gaps[0].shares == (("compute", 16), ("wait", 4))


def test_a_gap_is_shared_among_all_that_cover_parts_of_it():
    host = [(0, "wait", 0, 12), (0, "process", 12, 17), (0, "tokenize", 13, 15),
            (0, "submit", 20, 35)]  # fmt: skip
    report = analyse(timeline([(0, 0, 0, 10), (0, 1, 30, 40), (0, 2, 42, 50)], host))
    assert report.gaps[0].shares == (
        ("submit", 10), ("process", 3), (UNMARKED, 3), ("wait", 2), ("tokenize", 2)
    )  # fmt: skip
    assert report.gaps[1].shares == ((UNMARKED, 2),)
    causes = [(cause.name, cause.gaps, cause.total_us) for cause in report.idle.causes]
    assert causes[:2] == [("submit", 1, 0.01), (UNMARKED, 2, 0.005)]
    assert sum(cause.share_percent for cause in report.idle.causes) == pytest.approx(100)


def test_what_cannot_be_divided_equally_is_not_lost():
    host = [(thread, name, 10, 17) for thread, name in enumerate("abc")]
    [gap] = analyse(timeline([(0, 0, 0, 10), (0, 1, 17, 40)], host)).gaps
    assert sorted(share.idle_ns for share in gap.shares) == [2, 2, 3]


def test_mostly_unmarked_is_called_unmarked():
    report = analyse(timeline([(0, 0, 0, 10), (0, 1, 30, 40)], [(0, "submit", 28, 32)]))
    assert (report.gaps[0].cause, report.gaps[0].cause_ns) == (UNMARKED, 18)
    report = analyse(timeline([(0, 0, 0, 10), (0, 1, 30, 40)]))
    assert (report.gaps[0].cause, report.gaps[0].cause_ns) == (UNMARKED, 20)


@pytest.mark.parametrize(
    ("work", "options", "says"),
    [
        ([], {}, "no work of any device"),
        ([(0, -1, 0, 1)], {}, "ran 0 steps"),
        ([(0, 0, 0, 1)], {}, "ran 1 steps"),
        ([(0, 0, 0, 1), (0, 1, 2, 3)], {"warmup": 1}, "1 are left out"),
        ([(0, 0, 0, 1), (0, 1, 2, 3)], {"device": 5}, "device 5, only of 0"),
    ],
)
def test_too_little_is_a_clear_error(work, options, says):
    with pytest.raises(TimelineError, match=says):
        analyse(timeline(work), **options)


def test_negative_warm_up():
    with pytest.raises(ValueError, match="warmup is -1"):
        analyse(timeline([(0, 0, 0, 1), (0, 1, 2, 3)]), warmup=-1)


def test_dropped_work_makes_it_incomplete():
    work = [(0, 0, 0, 1), (0, 1, 2, 3)]
    assert analyse(timeline(work)).is_complete
    assert not analyse(timeline(work, dropped=1)).is_complete


work_rows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-1, 5), st.integers(0, 80), st.integers(0, 12)).map(
        lambda row: (row[0], row[1], row[2], row[2] + row[3])
    ),
    min_size=2,
    max_size=25,
).filter(lambda rows: len({row[1] for row in rows if row[1] >= 0}) >= 2)
host_rows = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.integers(0, 80), st.integers(1, 30)),
    max_size=8,
)


def without_crossings(rows):
    """Ranges as threads make them: of two on one thread that cross, the later is left out."""
    kept = []
    for thread, name, start, length in rows:
        end = start + length
        crosses = any(
            other == thread and (a < start < b < end or start < a < end < b)
            for other, _, a, b in kept
        )
        # Two ranges with the same bounds have no inner one; leave that case to its own test.
        same = any(other == thread and (a, b) == (start, end) for other, _, a, b in kept)
        if not crosses and not same:
            kept.append((thread, name, start, end))
    return kept


def reference(rows, host, warmup):
    """Idle time per pair of steps, and per pair what the host did in it, instant by instant."""
    steps = sorted({row[1] for row in rows if row[1] >= 0})
    bounds = [
        (min(r[2] for r in rows if r[1] == step), max(r[3] for r in rows if r[1] == step))
        for step in steps
    ]
    bounds = sorted(bounds, key=lambda bound: bound[0])[warmup:]
    busy = {t for _, _, start, end in rows for t in range(start, end)}
    idle_ns, shares, latest = [], [], bounds[0][1]
    for (_, end), (start, _) in pairwise(bounds):
        latest = max(latest, end)
        empty = [t for t in range(latest, start) if t not in busy]
        idle_ns.append(len(empty))
        share: dict[str, Fraction] = {}
        for t in empty:
            doing = set()
            for thread in range(3):
                around = [r for r in host if r[0] == thread and r[2] <= t < r[3]]
                if around:
                    doing.add(min(around, key=lambda r: r[3] - r[2])[1])
            for name in doing or {UNMARKED}:
                share[name] = share.get(name, 0) + Fraction(1, len(doing or {UNMARKED}))
        shares.append(share)
    span = (bounds[0][0], max(end for _, end in bounds))
    return idle_ns, shares, len(busy & set(range(*span))), span[1] - span[0]


@given(work_rows, host_rows, st.integers(0, 2))
def test_agrees_with_counting_instants(rows, host, warmup):
    host = without_crossings(host)
    if len({row[1] for row in rows if row[1] >= 0}) - warmup < 2:
        return
    report = analyse(timeline(rows, host), warmup=warmup)
    expected_idle, shares, busy_ns, span_ns = reference(rows, host, warmup)
    assert idle(report) == expected_idle
    assert report.steps.busy_us == pytest.approx(busy_ns / 1e3)
    assert report.steps.span_us == pytest.approx(span_ns / 1e3)
    assert report.idle.total_us == pytest.approx(sum(expected_idle) / 1e3)
    assert report.idle.p99_us == pytest.approx(np.percentile(expected_idle, 99) / 1e3)
    for gap, share in zip(report.gaps, shares, strict=True):
        assert sum(end - start for start, end in gap.stretches) == gap.idle_ns
        assert sum(ns for _, ns in gap.shares) == gap.idle_ns
        assert [ns for _, ns in gap.shares] == sorted((ns for _, ns in gap.shares), reverse=True)
        assert all(ns > 0 for _, ns in gap.shares)
        assert (gap.cause, gap.cause_ns) == (gap.shares[0] if share else ("", 0))
        # Whole nanoseconds are off by less than one in each piece of a range.
        found = dict(gap.shares)
        assert found.keys() <= share.keys()
        for name, exact in share.items():
            assert abs(found.get(name, 0) - exact) <= 2 * len(host)
            if len({thread for thread, *_ in host}) < 2:
                assert found[name] == exact
