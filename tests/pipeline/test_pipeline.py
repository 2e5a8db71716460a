"""Whatever the depth, the results are those of the sequential run, bit for bit."""

import collections

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.pipeline import Pipeline
from tests.pipeline.conftest import _devices

DEPTHS = [1, 2, 3, 4]
Pair = collections.namedtuple("Pair", "left right")

DTYPES = [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool, torch.complex64]


def as_bytes(tensor):
    return tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def same(left, right):
    """Whether two trees are equal to the bit, types and layouts of tensors included."""
    if isinstance(left, torch.Tensor):
        if (left.dtype, left.shape, left.device) != (right.dtype, right.shape, right.device):
            return False
        return torch.equal(as_bytes(left), as_bytes(right))
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple, collections.deque)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    seed = draw(st.integers(0, 2**31))
    values = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed))
    tensor = values.to(dtype)
    if tensor.dim() >= 2 and draw(st.booleans()):
        tensor = tensor.transpose(0, 1)
    if tensor.dim() >= 1 and tensor.size(-1) >= 2 and draw(st.booleans()):
        tensor = tensor[..., ::2]
    return tensor


def trees(leaf):
    return st.recursive(
        leaf | st.none() | st.integers() | st.text(max_size=3),
        lambda child: st.one_of(
            st.lists(child, max_size=3),
            st.tuples(child, child),
            st.dictionaries(st.sampled_from("abc"), child, max_size=3),
            st.builds(Pair, child, child),
            st.lists(child, max_size=2).map(collections.deque),
        ),
        max_leaves=6,
    )


@pytest.mark.parametrize("name", _devices())
@settings(deadline=None)  # the first use of the device takes longer
@given(inputs=st.lists(trees(tensors()), max_size=8), depth=st.integers(1, 4))
def test_trees_come_back_as_they_went_at_any_depth(name, inputs, depth):
    with Pipeline(lambda tree: tree, depth, device=name) as pipeline:
        results = list(pipeline.map(iter(inputs)))
    assert len(results) == len(inputs)
    for given_tree, result in zip(inputs, results, strict=True):
        assert same(given_tree, result)


@st.composite
def programs(draw):
    """A few operators, some of which read and write state that every step shares."""
    return draw(
        st.lists(
            st.sampled_from(["multiply", "add state", "update state", "roll", "matmul", "sort"]),
            min_size=1,
            max_size=6,
        )
    )


class Stateful:
    """A step with a state on the device, which each step may read and write, and returns."""

    def __init__(self, device, program):
        self.state = torch.ones(4, 4, device=device)
        self.weight = torch.arange(16.0, device=device).view(4, 4) / 7
        self.program = program

    def __call__(self, x):
        for operator in self.program:
            match operator:
                case "multiply":
                    x = x * 1.25
                case "add state":
                    x.add_(self.state)
                case "update state":
                    self.state.mul_(0.5).add_(x)
                case "roll":
                    x = x.roll(1, 0)
                case "matmul":
                    x = x @ self.weight
                case "sort":
                    x = x.sort(dim=-1).values
        return {"x": x, "row": x[1], "state": self.state, "view": self.state.t()[::2]}


@pytest.mark.parametrize("name", _devices())
@settings(deadline=None)
@given(
    program=programs(),
    values=st.lists(st.integers(-5, 5), min_size=1, max_size=8),
    depth=st.integers(2, 4),
)
def test_steps_with_state_do_not_show_the_depth(name, program, values, depth):
    def run(depth):
        inputs = (torch.full((4, 4), float(value)).tril() for value in values)
        with Pipeline(Stateful(name, program), depth, device=name) as pipeline:
            return list(pipeline.map(inputs))

    assert same(run(1), run(depth))


@pytest.mark.parametrize("depth", DEPTHS)
def test_results_are_those_of_a_plain_loop(device, depth):
    weight = torch.randn(32, 32).to(device)
    inputs = [torch.randn(8, 32) for _ in range(12)]
    expected = [torch.relu(x.to(device) @ weight).cpu() for x in inputs]
    with Pipeline(lambda x: torch.relu(x @ weight), depth, device=device) as pipeline:
        assert same(list(pipeline.map(inputs)), expected)


@pytest.mark.parametrize("depth", DEPTHS)
def test_an_input_that_is_refilled_is_not_mixed_up(device, depth):
    for pin in {False, device.type != "cpu"}:
        buffer = torch.zeros(1000, pin_memory=pin)

        def refilled(buffer=buffer):
            for value in range(10):
                yield buffer.fill_(value)

        with Pipeline(lambda x: x + 1, depth, device=device) as pipeline:
            results = [float(result.sum()) for result in pipeline.map(refilled())]
        assert results == [1000.0 * (value + 1) for value in range(10)]


def test_the_function_may_write_to_its_input(device):
    inputs = [torch.full((5,), float(value)) for value in range(6)]
    with Pipeline(lambda x: x.add_(1), device=device) as pipeline:
        results = list(pipeline.map(inputs))
    assert [float(x[0]) for x in inputs] == [0, 1, 2, 3, 4, 5]
    assert [float(x[0]) for x in results] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_result_is_never_written_again(device, depth):
    cell = torch.zeros(100, device=device)
    on_host = torch.zeros(1)

    def step(x):
        on_host.add_(1)
        return cell.add_(x), cell[3:7], on_host

    with Pipeline(step, depth, device=device) as pipeline:
        results = list(pipeline.map(torch.ones(100) for _ in range(8)))
    for count, (whole, part, counted) in enumerate(results, start=1):
        assert whole.tolist() == [count] * 100
        assert part.tolist() == [count] * 4
        assert counted.item() == count


def test_prepare_runs_on_the_host_and_its_result_is_sent(device):
    seen = []

    def prepare(text):
        return torch.tensor([ord(letter) for letter in text]), text

    def step(prepared):
        tensor, text = prepared
        seen.append(tensor.device.type)
        return tensor + 1, text

    with Pipeline(step, device=device, prepare=prepare) as pipeline:
        results = list(pipeline.map(["ab", "c"]))
    assert [(tensor.tolist(), text) for tensor, text in results] == [([98, 99], "ab"), ([100], "c")]
    assert seen == [device.type] * 2


def test_inputs_on_the_device_are_taken_as_they_are(device):
    x = torch.ones(3, device=device)
    seen = []
    with Pipeline(lambda y: seen.append(y.data_ptr()), device=device, inputs_stay=True) as pipeline:
        assert list(pipeline.map([x])) == [None]
    assert seen == [x.data_ptr()]


@pytest.mark.parametrize("stay", [False, True])
def test_inputs_that_stay_are_not_copied_on_the_host(device, stay):
    pinned = torch.ones(3, pin_memory=device.type != "cpu")
    with Pipeline(lambda y: y * 2, device=device, inputs_stay=stay) as pipeline:
        staged = pipeline._queue._transfer.stage((pinned, 5))
        assert (staged[0] is pinned) is stay
        assert [result.tolist() for result in pipeline.map([pinned] * 3)] == [[2, 2, 2]] * 3


def test_an_input_that_requires_gradients_can_be_differentiated(device):
    def step(x):
        (gradient,) = torch.autograd.grad((x * x).sum(), x)
        return gradient, x * 2

    inputs = [torch.full((2,), float(value), requires_grad=True) for value in range(3)]
    with Pipeline(step, device=device) as pipeline:
        for value, (gradient, doubled) in enumerate(pipeline.map(inputs)):
            assert gradient.tolist() == [2 * value] * 2
            assert not doubled.requires_grad
    assert all(x.grad is None for x in inputs)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_modes_of_the_caller_hold_inside_the_function(device, mode):
    def step(x):
        return x.requires_grad, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), x + 1

    def run(pipeline):
        return list(pipeline.map([torch.ones(2)] * 3))

    with Pipeline(step, device=device) as pipeline:
        outside = run(pipeline)
        with mode():
            inside = run(pipeline)
    assert [result[:3] for result in outside] == [(False, True, False)] * 3
    assert [result[1:3] for result in inside] == [(False, mode is torch.inference_mode)] * 3
    assert same([result[3] for result in inside], [result[3] for result in outside])


def test_layouts_survive(device):
    inputs = [torch.arange(24.0).view(2, 3, 4), torch.zeros(0, 3), torch.tensor(3)]

    def step(x):
        return x.transpose(0, -1) if x.dim() > 1 else x, x.unsqueeze(0).expand(3, *x.shape)

    with Pipeline(step, device=device) as pipeline:
        results = list(pipeline.map(inputs))
    for x, (turned, expanded) in zip(inputs, results, strict=True):
        assert torch.equal(turned, x.transpose(0, -1) if x.dim() > 1 else x)
        assert torch.equal(expanded, x.unsqueeze(0).expand(3, *x.shape))


def test_registered_classes_are_looked_into(device):
    modeling_outputs = pytest.importorskip("transformers.modeling_outputs")
    output = modeling_outputs.CausalLMOutput
    with Pipeline(lambda x: output(logits=x + 1), device=device) as pipeline:
        (result,) = pipeline.map([torch.ones(2)])
    assert type(result) is output
    assert result.logits.device.type == "cpu"
    assert result.logits.tolist() == [2, 2]


def test_operators_with_named_results_can_be_returned(device):
    with Pipeline(lambda x: torch.max(x, 0), device=device) as pipeline:
        (result,) = pipeline.map([torch.tensor([1.0, 5.0, 2.0])])
    assert type(result) is torch.return_types.max
    assert (result.values.item(), result.indices.item()) == (5, 1)


def test_streaming_gives_results_in_the_order_of_submission(device):
    with Pipeline(lambda x: x * 2, depth=3, device=device) as pipeline:
        assert [pipeline.submit(torch.tensor(value)) for value in (1, 2)] == [0, 1]
        assert pipeline.result().item() == 2
        assert [pipeline.submit(torch.tensor(value)) for value in (3, 4)] == [2, 3]
        assert [pipeline.result().item() for _ in range(3)] == [4, 6, 8]
        assert pipeline.in_flight == 0
        assert [x.item() for x in pipeline.map(torch.arange(3))] == [0, 2, 4]
        assert pipeline.submit(torch.tensor(7)) == 7
        assert pipeline.result().item() == 14


def test_a_pipeline_maps_again_and_again(device):
    with Pipeline(lambda x: x + 1, device=device) as pipeline:
        for length in (0, 1, 5, 0, 2):
            found = [x.item() for x in pipeline.map(torch.arange(length))]
            assert found == [value + 1 for value in range(length)]


def test_the_stream_is_the_one_that_was_current_when_it_was_made(device):
    if device.type == "cpu":
        pytest.skip("the CPU has no streams")
    side = torch.Stream(device)
    seen = []
    with side:
        pipeline = Pipeline(
            lambda x: (seen.append(torch.accelerator.current_stream()), x + 1)[1], device=device
        )
    with pipeline:
        assert [x.item() for x in pipeline.map(torch.arange(3))] == [1, 2, 3]
    assert seen == [side] * 3
    assert torch.accelerator.current_stream() != side
