import pytest
import torch
from child import run

FAILING = """
import torch
table = torch.zeros(3, device="gapless")
bad = torch.tensor([7], device="gapless")
"""


def fail() -> torch.Tensor:
    return torch.zeros(3, device="gapless")[torch.tensor([7], device="gapless")]


@pytest.mark.parametrize("read", ["synchronize", "event", "stream", "value", "copy"])
def test_a_failure_reaches_the_host_at_the_next_wait(read):
    event = torch.Event("gapless")
    result = fail()
    event.record()
    waits = {
        "synchronize": torch.accelerator.synchronize,
        "event": event.synchronize,
        "stream": torch.accelerator.current_stream().synchronize,
        "value": result.item,
        "copy": result.cpu,
    }
    with pytest.raises(torch.AcceleratorError) as caught:
        waits[read]()
    text = str(caught.value)
    assert "aten::index" in text
    assert "index 7 is out of bounds for dimension 0 with size 3" in text
    assert "Float[3], Long[1]" in text
    assert "submitted as work" in text
    assert "test_errors.py:" in text
    assert " in fail" in text
    assert "frame #" not in text
    torch.accelerator.synchronize()  # reported once
    assert torch.ones(3, device="gapless").sum().item() == 3


def test_later_work_does_not_run_on_garbage():
    target = torch.zeros(1, device="gapless")
    torch.accelerator.synchronize()
    target.copy_(fail())
    target.add_(5)
    with pytest.raises(torch.AcceleratorError, match=r"later work.* not run"):
        torch.accelerator.synchronize()
    assert target.item() == 0


def test_a_stream_that_waits_inherits_the_failure():
    side = torch.Stream("gapless")
    target = torch.zeros(1, device="gapless")
    torch.accelerator.synchronize()
    fail()
    side.wait_event(torch.accelerator.current_stream().record_event())
    with side:
        target.add_(5)
    with pytest.raises(torch.AcceleratorError, match="aten::index"):
        torch.accelerator.synchronize()
    torch.accelerator.synchronize()
    assert target.item() == 0


def test_the_callers_are_named_on_request():
    done = run(
        FAILING + "def inner():\n    return table[bad]\nresult = inner()\ntry:\n    result.cpu()\n"
        "except torch.AcceleratorError as error:\n    print(error)",
        GAPLESS_TRACE_SUBMIT="1",
    )
    text = done.stdout + done.stderr
    assert "at <string>:6 in inner" in text, text
    assert "called from <string>:7 in <module>" in text


def test_launch_blocking_raises_where_the_operation_is_called():
    done = run(
        FAILING + "try:\n    table[bad]\nexcept torch.AcceleratorError:\n    print('here')",
        GAPLESS_LAUNCH_BLOCKING="1",
    )
    assert done.stdout == "here\n", done.stderr
