import os

import pytest

from gapless.device.cores import CorePlan
from gapless.serving import device_cores


@pytest.mark.parametrize(
    ("cores", "chosen", "found"), [(2, None, "2"), (4, None, "4"), (5, None, None), (2, "1", "1")]
)
def test_small_machines_share_their_cores(monkeypatch, cores, chosen, found):
    monkeypatch.setattr(device_cores.os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.delenv(device_cores.VARIABLE, raising=False)
    if chosen:
        monkeypatch.setenv(device_cores.VARIABLE, chosen)
    device_cores.share_cores()
    assert os.environ.get(device_cores.VARIABLE) == found


@pytest.mark.parametrize(
    ("tokens", "small", "attention"), [(1, 1, 1), (2, 1, 1), (4, 1, 3), (8, 1, 3), (16, 3, 3)]
)
def test_small_kernels_have_a_thread(monkeypatch, tokens, small, attention):
    plan = CorePlan((0, 1, 2), (0, 1, 2), "chosen")
    monkeypatch.setattr(device_cores.cores, "plan", lambda: plan)
    device_cores._device_cores.cache_clear()
    try:
        assert device_cores.small_kernels_team(tokens) == small
        assert device_cores.attention_team(tokens) == attention
    finally:
        device_cores._device_cores.cache_clear()
