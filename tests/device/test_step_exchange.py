"""The memory through which captured steps go: both ends, here in one process."""

import os
import struct
import threading
import time

import pytest
import torch

from gapless import _C
from gapless.device import Graph

HEADER = struct.Struct("=IIqq")  # kind, rank, step, when it was sent
ROW_HEADER = 64
STEP, RESULT, SKIPPED, CALL = 1, 2, 3, 5
DONE, TROUBLE, TIME = 0, 1, 2
MINUTE_MS = 60_000
LAYOUT = [(0, torch.int64, (1,))]
SIZE = 8


def _mapped(workers, slots):
    """Two mappings of one exchange, as two processes have them."""
    sizes = (workers, slots, SIZE, SIZE)
    memory = os.memfd_create("exchange")
    try:
        os.ftruncate(memory, _C.StepExchange.file_bytes(*sizes))
        return _C.StepExchange(memory, *sizes), _C.StepExchange(memory, *sizes)
    finally:
        os.close(memory)


def _ports(exchange, ranks, slots=2):
    """Workers whose step looks an entry up in a table of 0, 10, 20."""
    table = torch.arange(0, 30, 10, device="gapless").view(3, 1)
    made = []
    for rank in ranks:
        port = _C.StepPort(exchange, rank, 0)
        for _ in range(slots):
            index = torch.zeros(1, dtype=torch.int64, device="gapless")
            sent, returned = (torch.zeros(1, dtype=torch.int64).pin_memory() for _ in range(2))
            graph, stream = Graph(), torch.Stream("gapless")
            torch.accelerator.synchronize()
            with stream, graph:
                index.copy_(sent, non_blocking=True)
                found = torch.nn.functional.embedding(index, table).view(1)
                returned.copy_(found, non_blocking=True)
            port.add_slot(graph, sent, returned)
        made.append(port)
    return made


def _value(number):
    return torch.tensor([number])


@pytest.fixture(params=[1, 3])
def both(request):
    """The caller's end and workers."""
    mine, theirs = _mapped(request.param, 2)
    return mine, _C.StepCaller(mine, LAYOUT, LAYOUT), _ports(theirs, range(request.param))


def _run(ports):
    for port in ports:
        assert port.receive() == STEP
        port.submit()


def test_steps_are_answered_in_order(both):
    _, caller, ports = both
    before_ns = time.monotonic_ns()
    for number in range(5):
        assert caller.post([_value(number % 3)])
        _run(ports)
        assert caller.wait(number, MINUTE_MS) == DONE
        rows = caller.rows(number)
        assert [each.item() for each in caller.results(rows)] == [10 * (number % 3)] * len(ports)
        for rank in range(len(ports)):
            kind, of, step, sent_ns = HEADER.unpack(rows[rank, : HEADER.size].numpy().tobytes())
            assert (kind, of, step) == (RESULT, rank, number)
            assert before_ns < sent_ns <= time.monotonic_ns()


def test_each_rank_has_its_own_input_and_two_steps_may_be_under_way(both):
    _, caller, ports = both
    inputs = [_value((rank + 1) % 3) for rank in range(len(ports))]
    assert caller.post(inputs)
    assert caller.post([(each,) for each in reversed(inputs)])
    _run(ports)
    _run(ports)
    for number, wanted in enumerate((inputs, inputs[::-1])):
        assert caller.wait(number, MINUTE_MS) == DONE
        results = caller.results(caller.rows(number))
        assert [each.item() for each in results] == [10 * each.item() for each in wanted]


def test_what_was_posted_ahead_waits_for_a_slot():
    """Two steps are in flight at most, however many the caller has posted."""
    mine, theirs = _mapped(1, 4)
    caller = _C.StepCaller(mine, LAYOUT, LAYOUT)
    [port] = _ports(theirs, [0], slots=2)
    for number in range(4):
        assert caller.post([_value(number % 3)])
    big = torch.ones(1500, 1500, device="gapless")
    for _ in range(4):
        big = big @ big  # before the steps, and long compared with what the host does
    _run([port, port])
    assert caller.wait(0, 0) == TIME
    for number in range(2):
        assert port.receive() == STEP
        assert caller.wait(number, 0) == DONE
        port.submit()
    for number in range(4):
        assert caller.wait(number, MINUTE_MS) == DONE
        assert caller.results(caller.rows(number))[0].item() == 10 * (number % 3)


def test_results_are_not_overwritten_by_later_steps(both):
    _, caller, ports = both
    kept = []
    for number in range(4):
        caller.post([_value(number % 3)])
        _run(ports)
        assert caller.wait(number, MINUTE_MS) == DONE
        kept.append(caller.results(caller.rows(number)))
    assert [step[-1].item() for step in kept] == [0, 10, 20, 0]
    kept[1][0].add_(1)  # like any tensor
    assert kept[1][0].item() == 11


def test_a_step_that_was_not_run_is_told(both):
    _, caller, ports = both
    for value in (7, 1):  # there is no entry 7
        caller.post([_value(value)])
        _run(ports[-1:])
    with pytest.raises(torch.AcceleratorError):
        torch.accelerator.synchronize()
    assert caller.wait(0, MINUTE_MS) == TROUBLE
    kinds = [HEADER.unpack(caller.rows(n)[-1, :24].numpy().tobytes())[0] for n in range(2)]
    assert kinds == [SKIPPED, SKIPPED]


def test_a_call_comes_after_the_steps_before_it(both):
    exchange, caller, ports = both
    caller.post([_value(1)])
    last = len(ports) - 1
    exchange.call([last])
    exchange.call([last])
    assert ports[last].run(None, []) == CALL
    assert ports[last].receive() == CALL
    with pytest.raises(RuntimeError, match="no input was received"):
        ports[last].submit()
    _run(ports[:last])
    assert caller.wait(0, MINUTE_MS) == DONE


def test_sleepers_are_woken(both):
    """Workers that wait before there is a step, and a caller before there is a result."""
    exchange, caller, ports = both
    prepared = []

    def prepare(rank, value):
        prepared.append(rank)
        value.add_(1)

    kinds = [0] * len(ports)

    def work(rank):
        buffers = [torch.zeros(1, dtype=torch.int64)] * 2  # not what the graph reads
        slots = [(rank, buffer) for buffer in buffers]
        kinds[rank] = ports[rank].run(prepare, slots)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(ports))]
    for thread in threads:
        thread.start()
    for number in range(20):
        caller.post([_value(number % 3)])
        assert caller.wait(number, MINUTE_MS) == DONE
        assert caller.results(caller.rows(number))[0].item() == 10 * (number % 3)
    exchange.call(list(range(len(ports))))
    for thread in threads:
        thread.join()
    assert kinds == [CALL] * len(ports)
    assert sorted(prepared) == sorted(list(range(len(ports))) * 20)


def test_an_error_of_prepare_comes_through_with_its_step(both):
    _, caller, ports = both

    def fail(value):
        raise KeyError("not today")

    caller.post([_value(0)])
    with pytest.raises(KeyError, match="not today"):
        ports[0].run(fail, [(None,), (None,)])
    assert ports[0].received == 0
    assert ports[0].submit() == 0
    assert ports[0].received == -1
    torch.accelerator.synchronize()


def test_a_caller_does_not_wait_for_ever(both):
    exchange, caller, _ = both
    caller.post([_value(0)])
    assert caller.wait(0, 1) == TIME
    exchange.report()
    assert caller.wait(0, MINUTE_MS) == TROUBLE


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([1, 2]),
        torch.tensor(1),
        torch.tensor([[1, 2], [3, 4]])[:1, 1],
        "text",
        (),
        ("text",),
    ],
    ids=str,
)
def test_what_is_not_plainly_the_layout_is_left_to_others(value):
    mine, _ = _mapped(1, 2)
    caller = _C.StepCaller(mine, LAYOUT, LAYOUT)
    fits = isinstance(value, torch.Tensor) and value.dtype == torch.int64 and value.shape == (1,)
    assert caller.post([value]) == fits  # of one element the stride does not matter
    assert caller.wait(0, 0) == TIME


def test_packed_inputs_must_have_the_size():
    mine, theirs = _mapped(1, 2)
    caller = _C.StepCaller(mine, LAYOUT, LAYOUT)
    with pytest.raises(ValueError, match="an input of 9 bytes was posted, and the steps take 8"):
        caller.post_packed([b"123456789"])
    with pytest.raises(TypeError):
        caller.post_packed(["text"])
    caller.post_packed([struct.pack("=q", 2)])
    [port] = _ports(theirs, [0])
    _run([port])
    assert caller.wait(0, MINUTE_MS) == DONE
    assert caller.results(caller.rows(0))[0].item() == 20


def test_misfits_are_refused():
    mine, _ = _mapped(2, 2)
    with pytest.raises(RuntimeError, match="rank 2 is none of the exchange's 2 workers"):
        _C.StepPort(mine, 2, 0)
    memory = os.memfd_create("small")
    try:
        with pytest.raises(RuntimeError, match=r"takes \d+ bytes, and its file has 0"):
            _C.StepExchange(memory, 2, 2, SIZE, SIZE)
    finally:
        os.close(memory)
    port = _C.StepPort(mine, 0, 0)
    with pytest.raises(RuntimeError, match="does not suit an exchange of 8 and 8"):
        port.add_slot(Graph(), torch.zeros(9).pin_memory(), torch.zeros(1).pin_memory())
