"""Worker processes: the results are those of the same steps in one process, one by one."""

import os
import time

import pytest
import torch

from gapless.errors import UsageError
from gapless.pipeline import AsyncExecutor, CapturedStep, Pipeline, WarmParent
from gapless.pipeline.worker_channel import packed, unpacked
from tests.pipeline import executor_loads as loads

pytestmark = pytest.mark.skipif(
    not torch.accelerator.is_available(), reason="the steps of these tests run on the device"
)


@pytest.fixture(scope="module")
def parent():
    with WarmParent() as warm:
        yield warm


def _inputs(count):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 8, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_functions_give_what_they_give_in_one_process(parent, depth):
    inputs = _inputs(7)
    with AsyncExecutor(2, loads.function, depth, parent=parent) as executor:
        results = list(executor.map(inputs))
    for rank in range(2):
        with Pipeline(loads.function(rank), 1, device="gapless") as pipeline:
            expected = list(pipeline.map(inputs))
        for step, wanted in zip(results, expected, strict=True):
            assert torch.equal(step[rank]["probabilities"], wanted["probabilities"])
            assert step[rank]["rank"] == rank


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_captured_steps_give_what_they_give_in_one_process(parent, depth):
    inputs = [(x, torch.tensor([number])) for number, x in enumerate(_inputs(9))]
    with AsyncExecutor(2, loads.captured, depth, parent=parent) as executor:
        results = list(executor.map(inputs))
    for rank in range(2):
        step = loads.captured(rank).as_function()
        with Pipeline(step, 1, device="gapless") as pipeline:
            expected = list(pipeline.map(inputs))
        for number, (mine, wanted) in enumerate(zip(results, expected, strict=True)):
            assert torch.equal(mine[rank][0], wanted[0])
            assert mine[rank][1].item() == number + rank


@pytest.mark.parametrize(("depth", "ahead"), [(1, 0), (2, 0), (2, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("load", [loads.captured, loads.function])
def test_inputs_are_taken_so_far_ahead_and_change_nothing(parent, load, depth, ahead):
    is_captured = load is loads.captured
    values = [(x, torch.tensor([n])) if is_captured else x for n, x in enumerate(_inputs(8))]
    taken = []

    def inputs():
        for number, value in enumerate(values):
            taken.append(number)
            yield value

    with AsyncExecutor(2, load, depth, parent=parent) as executor:
        found = []
        for number, results in enumerate(executor.map(inputs(), ahead=ahead)):
            assert len(taken) == min(number + depth + ahead, len(values))
            found.append(results)
        with pytest.raises(ValueError, match="ahead must be from 0 to"):
            executor.map([], ahead=3)
        assert executor.in_flight == 0
        expected = list(executor.map(values, ahead=0))
    for mine, wanted in zip(found, expected, strict=True):
        for rank in range(2):
            if is_captured:
                assert torch.equal(mine[rank][0], wanted[rank][0])
            else:
                assert torch.equal(mine[rank]["probabilities"], wanted[rank]["probabilities"])


def test_captured_steps_run_where_nothing_can_be_captured(parent):
    with AsyncExecutor(2, loads.on_cpu, device="cpu", parent=parent) as executor:
        results = list(executor.map(torch.full((2,), float(n)) for n in range(3)))
    assert [[each.tolist() for each in step] for step in results] == [
        [[2.0 * n + rank] * 2 for rank in range(2)] for n in range(3)
    ]


def test_state_stays_on_the_device_and_begins_where_reset_puts_it(parent):
    with AsyncExecutor(2, loads.counting, parent=parent) as executor:
        results = list(executor.map([()] * 5))
    assert [[each.item() for each in step] for step in results] == [[n, n] for n in range(1, 6)]


def test_each_rank_gets_its_own_input_and_prepares_it(parent):
    with AsyncExecutor(2, loads.preparing, parent=parent) as executor:
        executor.dispatch([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])])
        first, second = executor.collect()
    assert first.tolist() == [2.0, 4.0]
    assert second.tolist() == [8.0, 10.0]


def test_results_are_memory_of_their_own(parent):
    with AsyncExecutor(1, loads.counting, parent=parent) as executor:
        kept = [step[0] for step in executor.map([()] * 4)]
    assert [each.item() for each in kept] == [1, 2, 3, 4]


def test_what_does_not_fit_into_a_socket_arrives(parent):
    large = torch.arange(3_000_000, dtype=torch.int32)
    with AsyncExecutor(2, loads.echo, device="cpu", parent=parent) as executor:
        for results in executor.map([{"large": large + n} for n in range(3)]):
            last = results
    assert all(torch.equal(each["large"], large + 2) for each in last)


def test_inputs_of_a_captured_step_may_be_large(parent):
    large = torch.arange(300_000.0)
    with AsyncExecutor(2, loads.captured_large, parent=parent) as executor:
        for number, results in enumerate(executor.map(large * n for n in range(5))):
            assert all(torch.equal(results[rank], large * number + rank) for rank in range(2))


def test_inputs_of_a_captured_step_need_not_be_contiguous(parent):
    with AsyncExecutor(1, loads.preparing, parent=parent) as executor:
        executor.broadcast(torch.arange(4.0)[::2])
        executor.broadcast([torch.ones(2, requires_grad=True)])
        assert executor.collect()[0].tolist() == [0.0, 4.0]
        assert executor.collect()[0].tolist() == [2.0, 2.0]


def test_results_say_when_they_were_sent(parent):
    with AsyncExecutor(2, loads.counting, parent=parent) as executor:
        assert executor.sent_ns == [0, 0]
        before_ns = time.monotonic_ns()
        for _ in executor.map([()] * 3):
            assert all(before_ns < sent <= time.monotonic_ns() for sent in executor.sent_ns)


def test_calls_run_between_steps(parent):
    with AsyncExecutor(2, loads.counting, environment={"COLOUR": "blue"}, parent=parent) as both:
        assert both.call(os.getpid) == list(both.pids)
        assert len({*both.pids, os.getpid()}) == 3
        list(both.map([()] * 3))
        assert both.call(loads.environment_of, "COLOUR") == ["blue", "blue"]
        assert [each.item() for each in next(iter(both.map([()])))] == [4, 4]


def test_back_pressure(parent):
    with AsyncExecutor(1, loads.echo, 2, device="cpu", parent=parent) as executor:
        with pytest.raises(RuntimeError, match="dispatch a step first"):
            executor.collect()
        assert executor.broadcast(0) == 0
        assert executor.dispatch([1]) == 1
        assert executor.in_flight == 2
        with pytest.raises(RuntimeError, match=r"2 step\(s\) are in flight and the depth is 2"):
            executor.broadcast(2)
        with pytest.raises(RuntimeError, match="not collected"):
            executor.call(os.getpid)
        assert executor.collect() == [0]
        executor.broadcast(2)
        assert [executor.collect(), executor.collect()] == [[1], [2]]


def test_leaving_a_map_leaves_nothing_in_flight(parent):
    with AsyncExecutor(1, loads.echo, 3, device="cpu", parent=parent) as executor:
        for results in executor.map(range(100)):
            if results == [3]:
                break
        del results
        assert executor.in_flight == 0
        assert list(executor.map(range(2))) == [[0], [1]]


def test_nothing_comes_between_a_map_and_its_results(parent):
    with AsyncExecutor(1, loads.echo, 2, device="cpu", parent=parent) as executor:
        results = executor.map(range(10))
        assert next(results) == [0]
        for call in (executor.collect, lambda: executor.broadcast(1), lambda: executor.map([])):
            with pytest.raises(
                RuntimeError, match="while a map\\(\\) is under way; let it come to"
            ):
                call()
        assert list(results) == [[number] for number in range(1, 10)]
        results = executor.map(range(10))
        next(results)
        results.close()
        assert executor.in_flight == 0
        executor.broadcast(7)
        assert executor.collect() == [7]


def test_workers_meet_for_collectives(parent):
    with AsyncExecutor(2, loads.in_a_group, port=0, parent=parent) as executor:
        assert executor.port
        executor.dispatch([torch.tensor([1.0]), torch.tensor([10.0])])
        assert [each.item() for each in executor.collect()] == [11.0, 11.0]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((0, loads.echo), ValueError, "world_size must be from 1 to 1024, got 0"),
        ((-3, loads.echo), ValueError, "got -3"),
        ((2.0, loads.echo), TypeError, "whole number"),
        ((1, loads.echo, 0), ValueError, "depth must be from 1 to 64, got 0"),
        ((1, lambda rank: rank), TypeError, "function at the top of a module"),
        ((1, "echo"), TypeError, "load must be a function"),
    ],
)
def test_bad_arguments_start_nothing(arguments, error, text):
    with pytest.raises(error, match=text):
        AsyncExecutor(*arguments)


def test_a_port_in_use_is_refused(unused_port_holder):
    with pytest.raises(UsageError, match=f"port {unused_port_holder} is in use"):
        AsyncExecutor(1, loads.echo, port=unused_port_holder)
    with pytest.raises(ValueError, match="from 0 to 65535"):
        AsyncExecutor(1, loads.echo, port=65536)


@pytest.fixture
def unused_port_holder():
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_inputs_of_another_shape_are_refused_and_the_executor_goes_on(parent):
    with AsyncExecutor(1, loads.preparing, parent=parent) as executor:
        with pytest.raises(ValueError, match=r"captured with torch.float32 \[2\]"):
            executor.broadcast(torch.zeros(3))
        with pytest.raises(ValueError, match="1 input"):
            executor.broadcast(())
        with pytest.raises(TypeError, match="tensor on the host"):
            executor.broadcast([torch.zeros(2, device="gapless")])
        with pytest.raises(ValueError, match="2 inputs were dispatched to 1 workers"):
            executor.dispatch([torch.zeros(2)] * 2)
        executor.broadcast(torch.ones(2))
        assert executor.collect()[0].tolist() == [2.0, 2.0]


def test_a_captured_step_is_described_by_host_tensors():
    with pytest.raises(TypeError, match="tensors on the host"):
        CapturedStep(torch.relu, [torch.zeros(2, device="gapless")])
    with pytest.raises(TypeError, match="must be a function"):
        CapturedStep(3)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3),
        torch.empty(0, 4),
        torch.randn(3, 4).t(),
        torch.randn(5).to(torch.bfloat16),
        torch.tensor([True, False]),
        torch.randn(3, dtype=torch.complex64).conj(),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_tensors_travel_bit_for_bit(tensor):
    (back,) = unpacked(packed([tensor]))
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)


def test_a_tensor_of_the_device_does_not_travel():
    with pytest.raises(TypeError, match="send it on the host"):
        packed(torch.zeros(2, device="gapless"))
