"""The threads that a part of the work computes with."""

import os
import subprocess
import sys

import pytest
import torch

from gapless import _C
from gapless.device.cores import plan
from gapless.device.team import team_limit, whole_team


@pytest.fixture
def own():
    """As many as the device has cores."""
    return len(plan().device_cores)


def test_it_lasts_as_long_as_its_block(own):
    assert _C.team_size(0) == own
    with team_limit(1):
        assert _C.team_size(0) == 1
    assert _C.team_size(0) == own
    with team_limit(own + 5):
        assert _C.team_size(0) == own
    with team_limit(1):
        with team_limit(own):
            assert _C.team_size(0) == 1
        assert _C.team_size(0) == 1
    assert _C.team_size(0) == own
    with team_limit(1):
        with whole_team():
            assert _C.team_size(0) == own
        assert _C.team_size(0) == 1
    with whole_team():
        assert _C.team_size(0) == own
    with pytest.raises(KeyError), team_limit(1):
        raise KeyError
    assert _C.team_size(0) == own


def test_it_is_part_of_a_graph(own):
    x = torch.ones(4, device="gapless")
    graph = torch.accelerator.Graph()
    with graph, team_limit(1):
        x += 1
    assert _C.team_size(0) == own
    for _ in range(3):
        graph.replay()
    assert x.tolist() == [4.0] * 4
    assert _C.team_size(0) == own


def test_it_concerns_one_stream(own):
    other = torch.Stream("gapless")
    with team_limit(1):
        with other:
            assert _C.team_size(0) == own
        assert _C.team_size(0) == 1


def test_a_failure_inside_does_not_keep_it_for_ever(own):
    table = torch.zeros(3, 2, device="gapless")
    with team_limit(1):
        torch.nn.functional.embedding(torch.tensor([7], device="gapless"), table)
    with pytest.raises(torch.AcceleratorError):
        torch.accelerator.synchronize()
    with team_limit(1):
        pass
    assert _C.team_size(0) == own


def test_the_same_numbers():
    torch.manual_seed(0)
    a, b = torch.randn(2, 64, 64).to("gapless").unbind()
    whole = torch.softmax(a @ b, -1)
    with team_limit(1):
        limited = torch.softmax(a @ b, -1)
    torch.testing.assert_close(limited.cpu(), whole.cpu())


def test_a_kernel_needs_a_thread():
    with pytest.raises(ValueError, match="most must be at least 1, got 0"), team_limit(0):
        pass


@pytest.mark.skipif(
    len(plan().device_cores) > 1 or len(os.sched_getaffinity(0)) < 2,
    reason="this is the process with a larger team, or there are no cores for one",
)
def test_all_of_this_where_the_team_is_larger():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "GAPLESS_DEVICE_CORES": "2"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
