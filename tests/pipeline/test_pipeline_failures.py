"""An error arrives in the place of the result that it belongs to, and nothing is made up."""

import dataclasses
import gc
import pickle
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.pipeline import Pipeline, StepError
from tests.pipeline.conftest import _devices

IS_GAPLESS = getattr(torch.accelerator.current_accelerator(), "type", "") == "gapless"
on_gapless = pytest.mark.skipif(not IS_GAPLESS, reason="other devices do not go on after a failure")


class Trouble(Exception):
    pass


@pytest.mark.parametrize("name", _devices())
@settings(deadline=None)
@given(
    fates=st.lists(st.sampled_from(["good", "prepare", "submit", "half"]), max_size=8),
    depth=st.integers(1, 4),
)
def test_errors_of_the_host_take_the_place_of_their_results(name, fates, depth):
    total = torch.zeros((), dtype=torch.int64, device=name)

    def prepare(item):
        index, fate = item
        if fate == "prepare":
            raise Trouble(f"prepare {index}")
        return torch.tensor(index), fate

    def step(prepared):
        x, fate = prepared
        if fate == "submit":
            raise Trouble("before anything was submitted")
        total.add_(x)
        if fate == "half":
            raise Trouble("after half was submitted")
        return total

    with Pipeline(step, depth, device=name, prepare=prepare) as pipeline:
        results = list(pipeline.map(enumerate(fates), return_errors=True))
    expected = 0
    assert len(results) == len(fates)
    for index, (fate, result) in enumerate(zip(fates, results, strict=True)):
        expected += index if fate in ("good", "half") else 0
        if fate == "good":
            assert result.item() == expected
        else:
            stage = "prepare" if fate == "prepare" else "submit"
            assert (result.index, result.stage) == (index, stage)
            assert isinstance(result.__cause__, Trouble)
            assert not result.is_consequence
            assert f"input {index} failed" in str(result)
            assert "Trouble: " in str(result)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_results_before_an_error_come_first_and_those_after_it_can_be_had(device, depth):
    def step(x):
        if x == 2:
            raise Trouble("two")
        return torch.full((2,), x, device=device)

    with Pipeline(step, depth, device=device) as pipeline:
        results = pipeline.map(range(5))
        assert [next(results)[0].item() for _ in range(2)] == [0, 1]
        with pytest.raises(StepError, match=r"input 2 failed in the step function.*two") as caught:
            next(results)
        assert isinstance(caught.value.__cause__, Trouble)
        assert [result[0].item() for result in results] == [3, 4]
        statistics = pipeline.statistics
        assert (statistics.submitted_steps, statistics.read_steps) == (5, 5)
        assert (statistics.failed_steps, statistics.dropped_steps) == (1, 0)


def test_streaming_raises_at_the_result_and_not_at_the_submission(device):
    def step(x):
        raise Trouble

    with Pipeline(step, device=device) as pipeline:
        assert pipeline.submit(1) == 0
        with pytest.raises(StepError, match=r"input 0 failed in the step function.*: Trouble$"):
            pipeline.result()
        with pytest.raises(RuntimeError, match="no result is on its way; submit an input first"):
            pipeline.result()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_error_of_the_inputs_comes_after_the_results_before_it(device, depth):
    def inputs():
        yield torch.tensor(1)
        yield torch.tensor(2)
        raise Trouble("no more")

    with Pipeline(lambda x: x, depth, device=device) as pipeline:
        results = pipeline.map(inputs())
        assert [next(results).item(), next(results).item()] == [1, 2]
        with pytest.raises(StepError, match="input 2 could not be taken") as caught:
            next(results)
        assert caught.value.stage == "input"
        assert list(results) == []


@dataclasses.dataclass
class Hidden:
    tensor: torch.Tensor


class Slotted:
    def __init__(self, tensor):
        self.tensor = tensor


@pytest.mark.parametrize("wrap", [Hidden, Slotted, lambda x: {x}])
def test_results_out_of_sight_are_refused(device, wrap):
    with (
        Pipeline(lambda x: [wrap(x)], device=device) as pipeline,
        pytest.raises(StepError, match=r"TypeError: .*holds tensors out of sight; return tensors"),
    ):
        list(pipeline.map([torch.ones(1)]))


def test_what_has_no_plain_memory_is_refused_on_both_ways(device):
    sparse = torch.ones(2, 2).to_sparse()
    with Pipeline(lambda x: x, device=device) as pipeline:
        (error,) = pipeline.map([sparse], return_errors=True)
    assert error.stage == "prepare"
    assert "layout torch.sparse_coo; use to_dense() first" in str(error)
    with Pipeline(lambda x: sparse, device=device) as pipeline:
        (error,) = pipeline.map([1], return_errors=True)
    assert error.stage == "submit"
    assert "the result has a tensor of layout torch.sparse_coo" in str(error)


def test_tensors_of_another_device_are_refused_on_both_ways(device):
    other = torch.empty(1, device="meta")
    with Pipeline(lambda x: other, device=device) as pipeline:
        first, second = pipeline.map([other, 1], return_errors=True)
    assert "an input is on meta and the pipeline runs on" in str(first)
    assert "returned a tensor on meta and the pipeline runs on" in str(second)


def test_pinned_memory_is_not_returned_unread(device):
    if device.type == "cpu":
        pytest.skip("nothing is on its way there on the CPU")
    buffer = torch.empty(3, pin_memory=True)
    with Pipeline(lambda x: buffer.copy_(x, non_blocking=True), device=device) as pipeline:
        (error,) = pipeline.map([torch.ones(3)], return_errors=True)
    assert "in pinned host memory, and a copy may still be on its way there" in str(error)


@pytest.mark.parametrize("call", ["submit", "result", "close"])
def test_the_pipeline_is_not_called_from_its_own_function(device, call):
    def step(x):
        return pipeline.submit(x) if call == "submit" else getattr(pipeline, call)()

    with Pipeline(step, device=device) as pipeline:
        pipeline.submit(1)
        with pytest.raises(StepError, match="called while it submits a step"):
            pipeline.result()


def test_inputs_that_ask_for_results_not_handed_out_are_told_what_to_do(device):
    def inputs():
        yield torch.tensor(1)
        yield next(results) + 1

    with Pipeline(lambda x: x, 2, device=device) as pipeline:
        results = pipeline.map(inputs())
        assert next(results).item() == 1
        with pytest.raises(StepError, match=r"input 1 could not be taken.*taken 1 step\(s\) ahead"):
            next(results)
        assert list(results) == []


def test_a_step_error_can_be_sent_to_another_process():
    error = StepError(3, "device", ValueError("bad"), is_consequence=True)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert (copy.index, copy.stage, copy.is_consequence) == (3, "device", True)


def table_step(x):
    """Fails on the device, later, where the index is not below 3."""
    table = torch.arange(3, device="gapless")
    return table[x] + 100


@on_gapless
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_failure_of_the_device_is_told_with_its_input(depth):
    with Pipeline(table_step, depth, device="gapless") as pipeline:
        results = list(pipeline.map(torch.tensor([[0], [1], [7], [2], [0], [1], [2], [1]]),
                                    return_errors=True))  # fmt: skip
    assert [results[0].item(), results[1].item()] == [100, 101]
    failed = results[2]
    assert (failed.index, failed.stage, failed.is_consequence) == (2, "device", False)
    assert isinstance(failed.__cause__, torch.AcceleratorError)
    assert "index 7 is out of bounds" in str(failed.__cause__)
    # Those that had been submitted behind it were not run, and say so instead of giving garbage.
    for index, result in enumerate(results[3 : 2 + depth], start=3):
        assert (result.index, result.stage, result.is_consequence) == (index, "device", True)
        assert result.__cause__ is failed.__cause__
        assert "was not computed, as earlier work" in str(result)
    values = [102, 100, 101, 102, 101]
    assert [result.item() for result in results[2 + depth :]] == values[depth - 1 :]


def expected_outcomes(fates, depth):
    """What each input gives: a value, or the stage and whether an earlier one is to blame."""
    outcomes, stopped_before = [], 0
    for index, fate in enumerate(fates):
        if fate == "host":
            outcomes.append(("submit", False))
        elif index < stopped_before:
            outcomes.append(("device", True))
        elif fate == "device":
            outcomes.append(("device", False))
            stopped_before = index + depth  # submitted when this one is read
        else:
            outcomes.append(100 + index % 3)
    return outcomes


@on_gapless
@settings(deadline=None)
@given(
    fates=st.lists(st.sampled_from(["good", "good", "host", "device"]), max_size=12),
    depth=st.integers(1, 4),
)
def test_failures_of_host_and_device_are_told_apart_at_any_depth(fates, depth):
    def step(prepared):
        x, fate = prepared
        if fate == "host":
            raise Trouble
        return table_step(x)

    def prepare(item):
        index, fate = item
        return torch.tensor([7 if fate == "device" else index % 3]), fate

    with Pipeline(step, depth, device="gapless", prepare=prepare) as pipeline:
        results = list(pipeline.map(enumerate(fates), return_errors=True))
    found = [
        (result.stage, result.is_consequence) if isinstance(result, StepError) else result.item()
        for result in results
    ]
    assert found == expected_outcomes(fates, depth)
    assert [r.index for r in results if isinstance(r, StepError)] == [
        index for index, outcome in enumerate(found) if isinstance(outcome, tuple)
    ]


@on_gapless
@pytest.mark.parametrize("told", ["synchronize", "another read"])
def test_a_failure_that_somebody_else_was_told_is_not_lost(told):
    with Pipeline(table_step, 2, device="gapless") as pipeline:
        pipeline.submit(torch.tensor([7]))
        pipeline.submit(torch.tensor([1]))
        read = torch.ones(1, device="gapless").item
        wait = torch.accelerator.synchronize if told == "synchronize" else read
        with pytest.raises(torch.AcceleratorError):
            wait()
        for index in range(2):
            with pytest.raises(StepError, match=f"input {index} was not computed.*somebody else"):
                pipeline.result()
        pipeline.submit(torch.tensor([1]))
        assert pipeline.result().item() == 101


@on_gapless
def test_a_failure_that_is_told_to_a_later_step_is_the_earlier_ones():
    def step(x):
        if x.dim() == 0:
            x.item()  # waits, and is told of what failed before
        return table_step(x)

    inputs = [torch.tensor([0]), torch.tensor([7]), torch.tensor(1), torch.tensor([2])]
    with Pipeline(step, 3, device="gapless") as pipeline:
        results = list(pipeline.map(inputs, return_errors=True))
    assert results[0].item() == 100
    assert (results[1].index, results[1].stage, results[1].is_consequence) == (1, "device", False)
    assert (results[2].index, results[2].stage, results[2].is_consequence) == (2, "submit", True)
    assert results[1].__cause__ is results[2].__cause__
    assert results[3].item() == 102


@on_gapless
def test_a_failure_that_was_told_in_the_middle_of_a_step_spoils_that_step():
    def step(x):
        result = table_step(x)
        if len(x) == 2:
            with pytest.raises(torch.AcceleratorError):
                torch.accelerator.synchronize()  # as another thread might do meanwhile
        return result

    with Pipeline(step, 2, device="gapless") as pipeline:
        inputs = [torch.tensor([7]), torch.tensor([1, 1]), torch.tensor([2])]
        results = list(pipeline.map(inputs, return_errors=True))
    assert [result.is_consequence for result in results[:2]] == [True, True]
    assert results[2].item() == 102


@on_gapless
def test_an_error_of_the_host_mentions_what_failed_on_the_device():
    def step(x):
        result = table_step(x)
        if pipeline.in_flight == 0:
            raise Trouble("on the host")
        return result

    with Pipeline(step, 2, device="gapless") as pipeline:
        pipeline.submit(torch.tensor([7]))
        pipeline.submit(torch.tensor([1]))
        with pytest.raises(StepError, match="Trouble: on the host") as caught:
            pipeline.result()
        with pytest.raises(StepError, match="input 1 was not computed") as following:
            pipeline.result()
    assert following.value.is_consequence
    assert "index 7 is out of bounds" in caught.value.__notes__[0]


@on_gapless
@pytest.mark.parametrize("way", ["returned", "raised", "dropped"])
@pytest.mark.parametrize("fails", ["device", "submit"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.filterwarnings("ignore::gapless.pipeline.PipelineWarning")
def test_a_pipeline_that_saw_failures_leaves_no_memory_behind(way, fails, depth):
    def step(x):
        result = table_step(x)
        if fails == "submit" and x == 1:
            raise Trouble
        return result

    def use(inputs):
        with Pipeline(step, depth, device="gapless") as pipeline:
            results = pipeline.map(inputs, return_errors=way == "returned")
            for _ in range(1 if way == "dropped" else 3):
                with suppress(StepError):
                    next(results)
        assert pipeline.statistics.failed_steps <= (2 if fails == "device" else 1)

    gc.collect()
    before = torch.accelerator.memory_allocated()
    gc.disable()
    try:
        use(torch.tensor([[0], [7 if fails == "device" else 1], [2]]))
        torch.accelerator.synchronize()
        assert torch.accelerator.memory_allocated() == before
    finally:
        gc.enable()
