"""A pipeline on a device that is not the current one, in a process with several."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gapless.errors import UsageError
from gapless.pipeline import Pipeline, StepError

IS_GAPLESS = getattr(torch.accelerator.current_accelerator(), "type", "") == "gapless"

SECOND = """
import torch
from gapless.pipeline import Pipeline, StepError

def step(x):
    assert torch.accelerator.current_device_index() == 1
    return x + torch.ones(1, device="gapless")

for name in ("gapless:1", torch.device("gapless", 1)):
    with Pipeline(step, device=name) as pipeline:
        assert pipeline.device == torch.device("gapless", 1)
        print([result.item() for result in pipeline.map(torch.arange(4))])
        assert torch.accelerator.current_device_index() == 0
        for wrong in (torch.ones(1, device="gapless:0"), torch.ones(1, device="meta")):
            pipeline.submit(wrong)
            try:
                pipeline.result()
            except StepError as error:
                print(error)
with torch.accelerator.device_index(1), Pipeline(step) as pipeline:
    print(pipeline.device)
with Pipeline(lambda x: x.to("gapless:0"), device="gapless:1") as pipeline:
    (error,) = pipeline.map([torch.ones(1)], return_errors=True)
    print(error)
"""


@pytest.mark.skipif(not IS_GAPLESS, reason="asks for a second gapless device")
def test_a_second_device_is_current_inside_the_function_only():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SECOND)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "GAPLESS_NUM_DEVICES": "2"},
        check=False,
    )
    refused = "input {} failed while it was prepared on the host: ValueError: an input is on {} and"
    once = [
        "[1.0, 2.0, 3.0, 4.0]",
        refused.format(4, "gapless:0"),
        refused.format(5, "meta"),
    ]
    expected = [*once, *once, "gapless:1", "input 0 failed in the step function, on the host"]
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected), done.stdout + done.stderr
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start), line


def test_a_pipeline_runs_on_the_accelerator_where_there_is_one():
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    kind = "cpu" if accelerator is None else accelerator.type
    with Pipeline(abs) as pipeline:
        assert pipeline.device.type == kind
        assert (pipeline.device.index is None) == (kind == "cpu")


def test_a_device_that_is_not_there_is_no_reason_to_run_elsewhere():
    missing = "xpu" if torch.accelerator.current_accelerator() != torch.device("xpu") else "cuda"
    with pytest.raises(UsageError, match=rf"no device '{missing}', only .*; run gapless doctor"):
        Pipeline(abs, device=missing)


@pytest.mark.skipif(not IS_GAPLESS, reason="other devices do not go on after a failure")
def test_pipelines_of_several_threads_do_not_disturb_each_other():
    """Each on its own stream, one of them with failures on the device and on the host."""
    table = torch.arange(50.0, device="gapless")
    torch.accelerator.synchronize()

    def step(prepared):
        index, is_refused = prepared
        if is_refused:
            raise ValueError("refused")
        return table[index].mul_(2), index

    def run(thread):
        inputs = [(torch.arange(thread, thread + 1 + n % 7), False) for n in range(60)]
        if thread == 0:
            inputs[20] = torch.tensor([50]), False
            inputs[40] = torch.tensor([1]), True
        with torch.Stream("gapless"), Pipeline(step, 1 + thread, device="gapless") as pipeline:
            return inputs, list(pipeline.map(inputs, return_errors=True))

    with ThreadPoolExecutor(4) as pool:
        for thread, (inputs, results) in enumerate(pool.map(run, range(4))):
            failed = [result for result in results if isinstance(result, StepError)]
            assert [error.index for error in failed] == ([20, 40] if thread == 0 else [])
            for (index, _), result in zip(inputs, results, strict=True):
                if not isinstance(result, StepError):
                    assert torch.equal(result[0], index * 2.0)
                    assert torch.equal(result[1], index)
