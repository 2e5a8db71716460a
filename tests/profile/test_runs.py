import numpy as np
import pytest

from gapless.profile import analyse
from gapless.profile.runs import split_runs

from .handmade import timeline


def steps(numbers, period=100, length=60):
    return [
        (0, number, period * place, period * place + length) for place, number in enumerate(numbers)
    ]


def numbers(run):
    return [int(step) for step in run.column("step") if step >= 0]


@pytest.mark.parametrize(
    ("order", "runs"),
    [
        ([0, 1, 2, 3], [[0, 1, 2, 3]]),
        ([0, 0, 1, 1, 2], [[0, 0, 1, 1, 2]]),
        ([0, 1, 2, 0, 1], [[0, 1, 2], [0, 1]]),
        ([5, 6, 7, 0, 1], [[5, 6, 7], [0, 1]]),
        ([5, 6, 7, 5, 6], [[5, 6, 7], [5, 6]]),
        ([0, 1, 2, 3, 2, 3, 4], [[0, 1, 2, 3, 2, 3, 4]]),  # late work of a step, not a new run
        ([3], [[3]]),
        ([], []),
        ([-1, -1], []),
    ],
)
def test_a_run_begins_where_the_numbers_begin_again(order, runs):
    assert [numbers(run) for run in split_runs(timeline(steps(order)), 0)] == runs


def test_the_order_is_that_of_submission_not_of_the_rows():
    made = timeline(steps([0, 1, 2, 0, 1]), queued_ns=-1)
    shuffled = made.work[np.array([4, 0, 3, 2, 1])]
    runs = split_runs(timeline([]).__class__(shuffled, made.names), 0)
    assert [sorted(numbers(run)) for run in runs] == [[0, 1, 2], [0, 1]]


def test_work_beside_a_run_keeps_its_device_busy_and_nothing_else_does():
    beside = [(1, -1, 50, 130), (1, -1, 290, 310), (1, -1, 5000, 5001)]
    made = timeline([*steps([0, 1, 0, 1]), *beside], waits=[(1, -1, 0, 400)])
    first, second = split_runs(made, 0)
    assert len(first.work) == 2 + 1 + 1
    assert [gap.idle_ns for gap in analyse(first).gaps] == [0]
    assert [gap.idle_ns for gap in analyse(second).gaps] == [30]


def test_a_run_that_reaches_into_another_is_work_of_no_step_there():
    made = timeline([(0, 0, 0, 10), (0, 1, 20, 130), (1, 0, 100, 110), (1, 1, 150, 160)])
    first, second = split_runs(made, 0)
    assert numbers(first) == [0, 1]
    assert second.column("step").tolist() == [-1, 0, 1]
    assert [gap.idle_ns for gap in analyse(second).gaps] == [20]


def test_each_device_has_its_own_runs():
    one, two = timeline(steps([0, 1, 0, 1])), timeline(steps([0, 1, 2, 3]), device=1)
    both = type(one)(np.concatenate((one.work, two.work)), one.names)
    assert len(split_runs(both, 0)) == 2
    assert [numbers(run) for run in split_runs(both, 1)] == [[0, 1, 2, 3]]
