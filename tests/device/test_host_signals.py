"""Files that the device's own thread writes to when it has reached a place."""

import os
import select

import pytest
import torch

from gapless import _C
from gapless.device import Graph


def _signals(signal, wanted):
    """Wait for as many signals as that."""
    count = 0
    while count < wanted:
        ready, _, _ = select.select([signal.fileno()], [], [], 60)
        assert ready, f"{count} of {wanted} signals came"
        count += os.eventfd_read(signal.fileno())
    return count


def test_a_signal_comes_after_the_work_before_it():
    signal = _C.CompletionSignal()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(signal.fileno())
    result = torch.empty(4, pin_memory=True)
    result.copy_(torch.full((4,), 3.0, device="gapless") * 2, non_blocking=True)
    signal.submit(0)
    signal.submit(0)
    assert _signals(signal, 2) == 2
    assert result.tolist() == [6.0] * 4


def test_a_signal_comes_where_work_was_skipped():
    signal = _C.CompletionSignal()
    table = torch.arange(3, device="gapless")
    table[torch.tensor([7], device="gapless")]
    signal.submit(0)
    assert _signals(signal, 1) == 1
    with pytest.raises(torch.AcceleratorError):
        torch.accelerator.synchronize()


def test_a_signal_outlives_what_python_holds_of_it():
    signal = _C.CompletionSignal()
    kept = os.dup(signal.fileno())
    signal.submit(0)
    del signal
    ready, _, _ = select.select([kept], [], [], 60)
    assert ready
    os.close(kept)


def test_a_signal_cannot_be_captured():
    signal = _C.CompletionSignal()
    with pytest.raises(RuntimeError, match="submit it after the replay"), Graph():
        signal.submit(0)


def test_a_bound_replay_signals():
    signal = _C.CompletionSignal()
    x = torch.zeros(1, device="gapless")
    graph, event, stream = Graph(), torch.Event("gapless"), torch.Stream("gapless")
    with stream, graph:
        x.add_(1)
    replay = graph.bind_replay(event, signal)
    replay()
    replay()
    _signals(signal, 2)
    assert event.query()
    assert x.item() == 2
