"""Files and sockets that the device's own thread writes to when it has reached a place."""

import os
import select
import socket
import struct

import pytest
import torch

from gapless import _C
from gapless.device import Graph

HEADER = struct.Struct("=IIqq")
STEP, RESULT, SKIPPED = 1, 2, 3


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


@pytest.fixture
def port():
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    table = torch.arange(3, device="gapless")
    index = torch.zeros(1, dtype=torch.int64, device="gapless")
    sent = torch.zeros(1, dtype=torch.int64).pin_memory()
    returned = torch.zeros(1, dtype=torch.int64).pin_memory()
    graph, stream = Graph(), torch.Stream("gapless")
    torch.accelerator.synchronize()
    with stream, graph:
        index.copy_(sent, non_blocking=True)
        returned.copy_(
            torch.nn.functional.embedding(index, table.view(3, 1)).view(1), non_blocking=True
        )
    made = _C.StepPort(theirs.fileno(), 5, 0)
    made.add_slot(graph, sent, returned)
    with mine, theirs:
        mine.settimeout(60)
        yield made, mine


def _step(end, number, value):
    end.send(HEADER.pack(STEP, 0, number, 0) + struct.pack("=q", value))


def test_a_port_answers_steps_in_order(port):
    made, end = port
    for number, value in enumerate((2, 0, 1)):
        _step(end, number, value)
        assert made.receive() == STEP
        made.submit()
        kind, rank, step, sent_ns = HEADER.unpack(end.recv(HEADER.size, socket.MSG_PEEK))
        assert (kind, rank, step) == (RESULT, 5, number)
        assert sent_ns > 0
        assert struct.unpack("=q", end.recv(64)[HEADER.size :]) == (value,)


def test_a_port_tells_of_steps_that_were_not_run(port):
    made, end = port
    for number, value in enumerate((7, 1)):  # there is no entry 7
        _step(end, number, value)
        assert made.receive() == STEP
        made.submit()
    assert [HEADER.unpack(end.recv(64))[0] for _ in range(2)] == [SKIPPED, SKIPPED]
    with pytest.raises(torch.AcceleratorError):
        torch.accelerator.synchronize()


def test_a_port_hands_over_what_is_no_step(port):
    made, end = port
    end.send(HEADER.pack(8, 0, -1, 0))
    assert made.receive() == 8
    with pytest.raises(RuntimeError, match="no input was received"):
        made.submit()
    end.send(HEADER.pack(STEP, 0, 0, 0) + b"\0" * 9)
    with pytest.raises(RuntimeError, match="another size than the 8 bytes"):
        made.receive()
    end.close()
    assert made.receive() == 0
