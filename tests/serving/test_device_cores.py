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
    ("device", "host", "tokens", "team"),
    [
        ((0, 1), (0, 1), 1, 1),
        ((0, 1), (0, 1), 2, 1),
        ((0, 1), (0, 1), 4, 2),
        ((0, 1, 2, 3), (0, 1, 2, 3), 1, 3),
        ((1,), (0,), 1, 1),  # the host has a core of its own
        ((1, 2, 3), (0,), 1, 3),
        ((0,), (0,), 1, 1),
    ],
)
def test_small_batches_leave_the_host_a_core(monkeypatch, device, host, tokens, team):
    monkeypatch.setattr(device_cores.cores, "plan", lambda: CorePlan(device, host, "chosen"))
    assert device_cores.team_for(tokens) == team
