"""What the host does for each step is on the timeline, and the device's work has its step."""

from time import monotonic_ns

import numpy as np
import pytest
import torch

from gapless.pipeline import Pipeline
from gapless.profile import analyse, record
from gapless.profile.timeline import WORK_COLUMNS, WORK_KINDS

IS_GAPLESS = getattr(torch.accelerator.current_accelerator(), "type", "") == "gapless"
pytestmark = pytest.mark.skipif(not IS_GAPLESS, reason="only gapless records its work")

STEPS = 4
NAMES = {"schedule", "prepare", "submit", "wait", "process"}


def recorded(tmp_path, depth):
    weight = torch.randn(64, 64, device="gapless")
    torch.accelerator.synchronize()
    with record(tmp_path, trace=False) as recording, Pipeline(
        lambda x: x @ weight, depth, device="gapless"
    ) as pipeline:  # fmt: skip
        for _ in pipeline.map([torch.ones(64, 64)] * STEPS):
            torch.zeros(1, device="gapless")  # the caller's work, which belongs to no step
    return recording.timeline


def expected_ranges(depth):
    def submission(step):
        return [("schedule", step), ("prepare", step), ("submit", step)]

    ranges = [each for step in range(depth) for each in submission(step)]
    for step in range(STEPS):
        ranges += [("wait", step), ("process", step)]
        if step + depth < STEPS:
            ranges += submission(step + depth)
        elif step + depth == STEPS:
            ranges += [("schedule", STEPS)]  # asks for one more input, in vain
    return ranges


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_hosts_ranges_tell_what_it_did_for_which_step(tmp_path, depth):
    ranges = recorded(tmp_path, depth).ranges
    columns = ranges.columns[np.argsort(ranges.columns[:, 3], kind="stable")]
    found = [(ranges.names[name], step) for _, step, name, _, _ in columns.tolist()]
    assert found == expected_ranges(depth)
    # One begins when the other ends: nothing that the loop does is counted twice, or not at all.
    assert (columns[1:, 3] == columns[:-1, 4]).all()


@pytest.mark.parametrize("depth", [1, 2])
def test_all_work_of_a_step_carries_its_number(tmp_path, depth):
    timeline = recorded(tmp_path, depth)
    work = timeline.work[timeline.column("kind") != WORK_KINDS.index("wait")]
    kind = [WORK_KINDS[kind] for kind in work[:, WORK_COLUMNS.index("kind")].tolist()]
    step = work[:, WORK_COLUMNS.index("step")].tolist()
    pairs = list(zip(kind, step, strict=True))
    for number in range(STEPS):
        of_step = [kind for kind, step in pairs if step == number]
        # The input and the receipt's number; the product; the receipt and the result.
        assert of_step.count("copy to device") == 2
        assert of_step.count("op") >= 1
        assert of_step.count("copy to host") == 2
    assert {step for _, step in pairs} == {-1, *range(STEPS)}


def test_gaps_are_named_by_what_the_host_did(tmp_path):
    report = analyse(recorded(tmp_path, 1))
    assert report.steps.steps == STEPS
    assert len(report.gaps) == STEPS - 1
    assert all(gap.idle_ns > 0 for gap in report.gaps)
    assert {name for gap in report.gaps for name, _ in gap.shares} <= NAMES


def test_a_loop_by_hand_marks_nothing_of_its_caller(tmp_path):
    with record(tmp_path, trace=False) as recording, Pipeline(
        lambda x: x + 1, 2, device="gapless"
    ) as pipeline:  # fmt: skip
        pipeline.submit(torch.ones(3))
        between_ns = monotonic_ns()
        pipeline.result()
    ranges = recording.timeline.ranges
    found = [(ranges.names[row[2]], row[3] < between_ns) for row in ranges.columns.tolist()]
    assert found == [("prepare", True), ("submit", True), ("wait", False)]
    assert ranges.columns[1, 4] <= between_ns


def test_a_recording_that_begins_later_sees_the_steps(tmp_path):
    with Pipeline(lambda x: x + 1, 2, device="gapless") as pipeline:
        list(pipeline.map([torch.ones(3)] * 3))
        with record(tmp_path, trace=False) as recording:
            list(pipeline.map([torch.ones(3)] * 2))
            pipeline.submit(torch.ones(3))
            pipeline.result()
    steps = set(recording.timeline.column("step").tolist())
    assert {3, 4, 5} <= steps
    assert not steps & {0, 1, 2}
