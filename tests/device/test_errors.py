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


def test_streams_that_do_not_depend_go_on():
    side = torch.Stream("gapless")
    target = torch.zeros(1, device="gapless")
    torch.accelerator.synchronize()
    fail()
    with side:
        target.add_(5)
        assert target.item() == 5
    side.synchronize()
    with pytest.raises(torch.AcceleratorError, match="aten::index"):
        torch.gapless.default_stream().synchronize()


def test_one_wait_for_the_device_reports_all_that_failed_on_its_streams():
    streams = [torch.Stream("gapless") for _ in range(3)]
    for size, stream in enumerate(streams, start=3):
        with stream:
            torch.zeros(size, device="gapless")[torch.tensor([7], device="gapless")]
    last = torch.gapless.default_stream()
    last.wait_stream(streams[0])  # inherits, which makes no further error
    with pytest.raises(torch.AcceleratorError) as caught:
        torch.accelerator.synchronize()
    text = str(caught.value)
    for size in (3, 4, 5):
        assert text.count(f"index 7 is out of bounds for dimension 0 with size {size}") == 1
    torch.accelerator.synchronize()


@pytest.mark.parametrize("first", ["event", "stream", "value", "copy"])
def test_a_stream_that_was_told_is_not_told_again_but_who_inherited_is(first):
    side = torch.Stream("gapless")
    event = torch.Event("gapless")
    result = fail()
    event.record()
    side.wait_event(event)
    waits = {
        "event": event.synchronize,
        "stream": torch.accelerator.current_stream().synchronize,
        "value": result.item,
        "copy": result.cpu,
    }
    with pytest.raises(torch.AcceleratorError, match="aten::index"):
        waits[first]()
    torch.accelerator.current_stream().synchronize()
    event.synchronize()
    with side, pytest.raises(torch.AcceleratorError, match=r"stream \d+ waited for that stream"):
        result.cpu()  # was never computed, and this stream knows
    side.synchronize()


def test_what_is_marked_after_a_report_does_not_inherit_it():
    stream, side = torch.Stream("gapless"), torch.Stream("gapless")
    with stream:
        fail()
    with pytest.raises(torch.AcceleratorError):
        stream.synchronize()
    side.wait_stream(stream)  # on which nothing was submitted since
    with side:
        assert (torch.ones(3, device="gapless") + 1).sum().item() == 6


def test_an_event_before_the_failure_is_reached_without_an_error():
    torch.ones(3, device="gapless").add_(1)
    before = torch.accelerator.current_stream().record_event()
    fail()
    before.synchronize()
    with pytest.raises(torch.AcceleratorError):
        torch.accelerator.synchronize()


OPERATIONS = {
    "index": ("table[bad]", "aten::index.Tensor", "Float[3], Long[1]"),
    "in place": ("table[bad] = 1", "aten::_index_put_impl_", "Float[3], Long[1]"),
    "out": (
        "torch.index_select(table, 0, bad, out=torch.empty(1, device='gapless'))",
        "aten::index_select.out",
        "Float[3], Long[1], Float[1]",
    ),
    "gather": ("table.gather(0, bad)", "aten::gather", "Float[3], Long[1]"),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_errors_name_operator_shapes_and_place(name):
    code, operator, operands = OPERATIONS[name]
    table = torch.zeros(3, device="gapless")
    bad = torch.tensor([7], device="gapless")
    exec(compile(code, "program.py", "exec"), {"torch": torch, "table": table, "bad": bad})
    with pytest.raises(torch.AcceleratorError) as caught:
        torch.accelerator.synchronize()
    text = str(caught.value)
    assert text.startswith(operator), text
    assert operands in text
    assert "at program.py:1 in <module>" in text


LOST = (
    FAILING
    + """
stream, side = torch.accelerator.current_stream(), torch.Stream("gapless")
table[bad]
side.wait_event(stream.record_event())
while not (stream.query() and side.query()):
    pass
"""
)


def test_an_error_that_nobody_waited_for_is_printed_at_exit_once():
    done = run(LOST)
    assert done.returncode == 0
    assert done.stderr.startswith("gapless: nobody waited for this error: aten::index"), done.stderr
    assert done.stderr.count("index 7 is out of bounds") == 1
    assert "at <string>:" in done.stderr


def test_an_error_that_was_reported_is_not_printed_at_exit():
    done = run(
        LOST + "try:\n    stream.synchronize()\nexcept torch.AcceleratorError:\n    print('told')"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\n", "")


def test_the_line_that_is_named_is_the_programs_own():
    layer = torch.nn.Embedding(3, 2, device="gapless")
    bad = torch.tensor([7], device="gapless")
    layer(bad)
    with pytest.raises(torch.AcceleratorError) as caught:
        torch.accelerator.synchronize()
    assert "test_errors.py:" in str(caught.value)
    assert "in test_the_line_that_is_named" in str(caught.value)


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


def test_a_launch_blocking_that_means_nothing_is_refused():
    done = run("import torch; torch.ones(2, device='gapless')", GAPLESS_LAUNCH_BLOCKING="yes")
    assert done.returncode != 0
    assert "GAPLESS_LAUNCH_BLOCKING=yes: must be 1 (on) or 0 (off)" in done.stderr
