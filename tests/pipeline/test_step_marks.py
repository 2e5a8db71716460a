import sys

import pytest
import torch

from gapless.pipeline.step_marks import host_ranges, ignore_step, step_setter

IS_GAPLESS = getattr(torch.accelerator.current_accelerator(), "type", "") == "gapless"


def test_other_devices_are_told_no_steps():
    assert step_setter(torch.device("cpu")) is ignore_step
    ignore_step(3)


@pytest.mark.skipif(not IS_GAPLESS, reason="needs the gapless device")
def test_steps_are_set_only_while_somebody_records():
    from gapless.device import recorder

    device = torch.device("gapless")
    assert step_setter(device) is ignore_step
    recorder.start(16)
    try:
        assert step_setter(device) is recorder.set_step
    finally:
        recorder.stop()
        recorder.drain()


def test_without_a_profile_ranges_do_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "gapless.profile.ranges", None)
    with host_ranges()("wait", 3):
        pass
