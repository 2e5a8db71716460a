import os

import pytest
import torch

from gapless import _C
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


@pytest.mark.parametrize(("tokens", "is_small"), [(1, True), (32, True), (33, False)])
def test_small_kernels_have_a_thread(tokens, is_small):
    own = torch.gapless.get_device_properties().cores
    with device_cores.small_kernels(tokens):
        assert _C.team_size(0) == (1 if is_small else own)
    assert _C.team_size(0) == own
