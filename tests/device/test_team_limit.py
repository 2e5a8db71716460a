"""The threads that a part of the work computes with."""

import os
import subprocess
import sys

import pytest
import torch

from gapless import _C
from gapless.device.team import team_limit, whole_team

CHILD = "TEST_OF_A_LARGER_TEAM"


@pytest.fixture
def own():
    """As many as the device has cores."""
    return torch.gapless.get_device_properties().cores


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
    for wrong in (1.5, "1", None, True):
        with pytest.raises(TypeError, match="a whole number of threads, got"), team_limit(wrong):
            pass
    with team_limit(1 << 40, "gapless:0"), team_limit(1, torch.device("gapless")):
        assert _C.team_size(0) == 1


def test_a_replay_within_a_limit_leaves_it(own):
    x = torch.ones(4, device="gapless")
    limited, whole, plain = (torch.accelerator.Graph() for _ in range(3))
    with limited, team_limit(1):
        x += 1
    with whole, whole_team():
        x += 1
    with plain:
        x += 1
    for graph in (limited, whole, plain):
        with team_limit(1):
            graph.replay()
            assert _C.team_size(0) == 1
        assert _C.team_size(0) == own
    assert x.tolist() == [4.0] * 4


def test_the_stream_that_was_limited_is_freed(own):
    first, second = torch.Stream("gapless"), torch.Stream("gapless")
    before = torch.accelerator.current_stream()
    try:
        torch.accelerator.set_stream(first)
        with team_limit(1):
            torch.accelerator.set_stream(second)
        assert _C.team_size(0) == own
        torch.accelerator.set_stream(first)
        assert _C.team_size(0) == own
    finally:
        torch.accelerator.set_stream(before)


def test_a_limit_and_a_capture_lie_one_in_the_other():
    graph = torch.accelerator.Graph()
    limit = team_limit(1)
    with graph:
        limit.__enter__()
    with pytest.raises(RuntimeError, match="a capture has begun or ended within a limit"):
        limit.__exit__(None, None, None)


@pytest.mark.skipif(
    CHILD in os.environ or len(os.sched_getaffinity(0)) < 2,
    reason="this is the process with a larger team, or there are no cores for one",
)
def test_all_of_this_where_the_team_is_larger():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "GAPLESS_DEVICE_CORES": "2", CHILD: "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "9 passed" in done.stdout
