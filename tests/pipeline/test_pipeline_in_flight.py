"""How far the host runs ahead: counted, never timed."""

import weakref

import pytest
import torch

from gapless.pipeline import Pipeline

IS_GAPLESS = getattr(torch.accelerator.current_accelerator(), "type", "") == "gapless"
needs_gates = pytest.mark.skipif(not IS_GAPLESS, reason="needs a device whose stream can be held")


class Counted:
    """A step that counts its submissions."""

    def __init__(self):
        self.submitted = 0

    def __call__(self, x):
        self.submitted += 1
        return x + 1


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 10])
def test_a_result_is_handed_out_with_the_next_ones_submitted(device, depth, length):
    step = Counted()
    with Pipeline(step, depth, device=device) as pipeline:
        for read, _ in enumerate(pipeline.map(torch.arange(length)), start=1):
            assert step.submitted == min(read - 1 + depth, length)
            assert pipeline.in_flight == step.submitted - read < depth
        assert pipeline.statistics.in_flight_most == min(depth, length)
    assert step.submitted == length


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_inputs_are_taken_only_when_there_is_room(device, depth):
    taken = 0

    def inputs():
        nonlocal taken
        while True:
            taken += 1
            yield torch.tensor(taken)

    with Pipeline(lambda x: x, depth, device=device) as pipeline:
        results = pipeline.map(inputs())
        assert taken == 0
        for read in range(1, 10):
            assert next(results).item() == read
            assert taken == read + depth - 1


def test_at_depth_1_an_input_may_depend_on_the_result_before(device):
    seen = []

    def inputs():
        yield torch.tensor(1)
        for _ in range(5):
            yield torch.tensor(seen[-1] * 2)

    with Pipeline(lambda x: x + 1, depth=1, device=device) as pipeline:
        for result in pipeline.map(inputs()):
            seen.append(result.item())
    assert seen == [2, 5, 11, 23, 47, 95]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_submitting_more_than_the_depth_is_refused(device, depth):
    step = Counted()
    with Pipeline(step, depth, device=device) as pipeline:
        for value in range(depth):
            pipeline.submit(torch.tensor(value))
        expected = rf"{depth} step\(s\) are in flight and the depth is {depth}; take a result"
        with pytest.raises(RuntimeError, match=expected):
            pipeline.submit(torch.tensor(9))
        assert step.submitted == pipeline.in_flight == depth
        assert pipeline.result().item() == 1
        pipeline.submit(torch.tensor(9))
        assert [pipeline.result().item() for _ in range(depth)] == [*range(2, depth + 1), 10]


def test_outputs_last_until_their_result_was_read_and_no_longer(device):
    outputs = []

    def step(x):
        output = x + 1
        outputs.append(weakref.ref(output))
        return output

    with Pipeline(step, 2, device=device) as pipeline:
        pipeline.submit(torch.ones(3))
        pipeline.submit(torch.ones(3))
        for read in range(3):
            assert [output() is None for output in outputs] == [read > 0, read > 1]
            if read < 2:
                pipeline.result()


@pytest.fixture
def gate():
    from tests.random import gate

    yield gate
    gate.release_all()
    torch.accelerator.synchronize()
    gate.forget_all()


@needs_gates
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_all_steps_are_submitted_while_the_device_is_held(gate, depth):
    # Whatever waited for the device here would wait until the gate gives up, with an error.
    with Pipeline(lambda x: (x * 2, x.sum()), depth, device="gapless") as pipeline:
        event = torch.Event("gapless")
        gate.hold(0, 0)
        event.record()
        for value in range(depth):
            pipeline.submit(torch.full((100, 100), float(value)))
        assert not event.query()
        assert pipeline.statistics.drained_steps == 0
        gate.release(0)
        for value in range(depth):
            doubled, total = pipeline.result()
            assert torch.equal(doubled, torch.full((100, 100), 2.0 * value))
            assert total.item() == 10000 * value
        assert pipeline.statistics.host_wait_steps == 0


@needs_gates
def test_a_result_is_read_while_the_next_step_is_held(gate):
    def step(number):
        if number == 1:
            gate.hold(0, 0)
        return torch.full((10,), number, device="gapless")

    with Pipeline(step, depth=3, device="gapless") as pipeline:
        results = pipeline.map(range(4))
        assert next(results).tolist() == [0] * 10  # steps 1 and 2 are behind the gate
        assert pipeline.in_flight == 2
        gate.release(0)
        assert [result[0].item() for result in results] == [1, 2, 3]


@needs_gates
def test_inputs_and_results_of_steps_in_flight_have_memory_of_their_own(gate):
    buffer = torch.empty(1000, pin_memory=True)
    state = torch.zeros(1000, device="gapless")
    with Pipeline(lambda x: state.add_(x), depth=4, device="gapless") as pipeline:
        gate.hold(0, 0)
        for value in range(1, 5):
            pipeline.submit(buffer.fill_(value))  # overwritten before the device has run anything
        buffer.fill_(-1)
        gate.release(0)
        assert [pipeline.result().unique().tolist() for _ in range(4)] == [[1], [3], [6], [10]]
