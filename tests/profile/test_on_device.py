import numpy as np
import pytest
import torch

import gapless  # noqa: F401  (also where autoloading is off)
from gapless.device import recorder
from gapless.profile import WORK_KINDS, analyse, host_range, record
from gapless.profile.timeline import WORK_COLUMNS

from .test_trace import Parsed


@pytest.fixture
def recorded(tmp_path):
    x = torch.randn(64, 64, device="gapless")
    host = torch.empty(64, 64, pin_memory=True)
    torch.accelerator.synchronize()
    with record(tmp_path, trace=True) as recording:
        try:
            for step in range(5):
                recorder.set_step(step)
                with host_range("submit", step):
                    y = torch.relu(x @ x)
                    host.copy_(y, non_blocking=True)
                with host_range("wait", step):
                    torch.accelerator.synchronize()
        finally:
            recorder.set_step(-1)
    return recording


def test_every_work_is_recorded_with_step_and_times(recorded):
    timeline = recorded.timeline
    assert recorder.COLUMNS == WORK_COLUMNS
    assert recorder.KINDS == WORK_KINDS
    assert timeline.devices == (0,)
    assert timeline.dropped_work == 0
    in_steps = timeline.work[timeline.column("step") >= 0]
    step = in_steps[:, WORK_COLUMNS.index("step")]
    assert np.unique(step).tolist() == [0, 1, 2, 3, 4]
    kinds = {WORK_KINDS[kind] for kind in in_steps[:, WORK_COLUMNS.index("kind")].tolist()}
    assert {"op", "copy to host"} <= kinds
    submit, start, end = (in_steps[:, WORK_COLUMNS.index(f"{at}_ns")] for at in
                          ("submit", "start", "end"))  # fmt: skip
    assert (submit > 0).all()
    assert (submit <= start).all()
    assert (start <= end).all()


def test_one_stream_runs_one_work_at_a_time(recorded):
    timeline = recorded.timeline
    for stream in np.unique(timeline.column("stream")):
        rows = timeline.column("stream") == stream
        order = np.argsort(timeline.column("work")[rows])
        start = timeline.column("start_ns")[rows][order]
        end = timeline.column("end_ns")[rows][order]
        assert (start[1:] >= end[:-1]).all()


def test_gaps_are_found_and_blamed_on_what_was_marked(recorded):
    report = analyse(recorded.timeline)
    assert report.steps.steps == 5
    # The host waits after every step, so that each gap is one.
    assert all(gap.idle_ns > 0 for gap in report.gaps)
    assert {gap.cause for gap in report.gaps} <= {"submit", "wait", "unmarked"}
    assert 0 < report.steps.busy_percent < 100


def test_the_trace_is_valid_and_every_step_has_its_arrows(recorded):
    parsed = Parsed(recorded.trace_path)
    starts, ends = parsed.check()
    assert all(starts[flow] <= ends[flow] for flow in starts)
    submits = [name for name, _, _ in parsed.slices("MainThread")]
    assert submits.count("submit") == 5
    assert len(parsed.slices("idle between steps")) >= 4
