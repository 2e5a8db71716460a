"""Steps that make the host wait are counted, with the reason, and never pass silently."""

import dataclasses
import warnings

import pytest
import torch

from gapless.pipeline import HostWait, Pipeline, PipelineWarning
from gapless.pipeline.host_waits import HostWaitCounter

IS_GAPLESS = getattr(torch.accelerator.current_accelerator(), "type", "") == "gapless"
on_gapless = pytest.mark.skipif(
    not IS_GAPLESS, reason="only gapless counts what the host waits for"
)

READS = {
    "item": (lambda x: x.sum().item(), "aten::_local_scalar_dense", "the host reads a value"),
    "cpu": (lambda x: x.cpu(), "copy device to host", "a blocking copy waits"),
    "nonzero": (lambda x: x.nonzero(), "aten::nonzero", ""),
}


@on_gapless
@pytest.mark.parametrize("read", READS)
def test_a_step_that_reads_is_counted_and_warned_of_once(read):
    function, operation, reason = READS[read]
    with Pipeline(function, 2, device="gapless") as pipeline:
        with pytest.warns(PipelineWarning) as caught:
            results = list(pipeline.map([torch.arange(4.0)] * 5))
        statistics = pipeline.statistics
    assert len(results) == 5
    assert len(caught) == 1
    assert caught[0].filename == __file__
    text = str(caught[0].message)
    assert "the step of input 0 waited for the device" in text
    assert operation in text
    assert reason in text
    assert "cannot run ahead of such a step; keep values on the device" in text
    assert statistics.host_wait_steps == 5
    assert sum(wait.count for wait in statistics.host_waits) == 5
    assert {wait.operation for wait in statistics.host_waits} == {operation}
    assert statistics.no_overlap_reason in text


@on_gapless
def test_only_the_steps_that_wait_are_counted():
    def step(number):
        x = torch.full((3,), number, device="gapless")
        return x.sum().item() if number % 3 == 2 else x.sum()

    with Pipeline(step, 2, device="gapless") as pipeline:
        results = pipeline.map(range(8))
        with pytest.warns(PipelineWarning, match="the step of input 2 waited"):
            assert [next(results).item() for _ in range(2)] == [0, 3]
        torch.ones(1, device="gapless").item()  # the caller's own waits are not the step's
        assert [float(result) for result in results] == [6, 9, 12, 15, 18, 21]
        assert pipeline.statistics.host_wait_steps == 2
        assert pipeline.statistics.host_waits == (
            HostWait("aten::_local_scalar_dense", "the host reads a value", 2),
        )


@on_gapless
def test_sequential_steps_are_counted_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Pipeline(lambda x: x.item(), 1, device="gapless") as pipeline:
            assert list(pipeline.map(torch.arange(3))) == [0, 1, 2]
    assert pipeline.statistics.host_wait_steps == 3


@on_gapless
def test_the_pipeline_itself_does_not_make_the_host_wait():
    large = torch.ones(1 << 20)  # 4 MiB, above what a blocking copy takes a snapshot of
    torch.gapless.departures.reset()
    with Pipeline(lambda x: (x + 1, x.t(), x[:2].double()), 2, device="gapless") as pipeline:
        for shape in [(), (5,), (5, 7), (0, 3)]:
            inputs = [torch.ones(shape)] * 4 if len(shape) else [large] * 4
            for _ in pipeline.map([x.reshape(-1, 1) for x in inputs]):
                pass
        statistics = pipeline.statistics
    assert torch.gapless.departures.counts() == ()
    assert (statistics.host_wait_steps, statistics.host_waits) == (0, ())
    assert statistics.no_overlap_reason is None


@on_gapless
def test_counts_that_are_reset_meanwhile_are_no_nonsense():
    x = torch.ones(1, device="gapless")
    counter = HostWaitCounter(x.device)
    for _ in range(3):
        x.item()
    counter.begin()
    torch.gapless.departures.reset()
    x.item()
    assert [wait.count for wait in counter.end()] == [1]


def test_steps_that_wait_explicitly_leave_the_device_drained(device):
    def step(x):
        y = x + 1
        if device.type != "cpu":
            torch.accelerator.synchronize()
        return y

    with Pipeline(step, 2, device=device) as pipeline:
        assert len(list(pipeline.map([torch.ones(2)] * 4))) == 4
        assert pipeline.statistics.drained_steps == 4


def test_on_the_cpu_nothing_overlaps_and_that_is_said():
    with Pipeline(lambda x: x, 2, device="cpu") as pipeline:
        list(pipeline.map([torch.ones(1)] * 3))
    statistics = pipeline.statistics
    assert statistics.no_overlap_reason == "the CPU executes each operation before it returns"
    assert statistics.host_wait_steps is None


def test_statistics_are_a_snapshot(device):
    with Pipeline(lambda x: x, 2, device=device) as pipeline:
        before = pipeline.statistics
        list(pipeline.map([torch.ones(1)] * 3))
        after = pipeline.statistics
    assert (before.submitted_steps, before.read_steps, before.in_flight_most) == (0, 0, 0)
    assert (before.prepare_us, before.submit_us, before.wait_us) == (0, 0, 0)
    assert (after.submitted_steps, after.read_steps, after.in_flight_most) == (3, 3, 2)
    assert min(after.prepare_us, after.submit_us, after.wait_us) > 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.read_steps = 0
