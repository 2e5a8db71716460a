"""While a program is being made, the graph runs; afterwards, the program does."""

import threading

import pytest
import torch

from gapless.compile import compiler_thread, gapless_backend, statistics, wait_until_compiled
from gapless.compile.compiler_process import make_elsewhere
from gapless.errors import UsageError


@pytest.fixture
def held(monkeypatch):
    """Programs are made, or fail, only once the event is set."""
    event = threading.Event()
    event.failure = None

    def make(request):
        assert event.wait(60)
        if event.failure:
            raise event.failure
        return make_elsewhere(request)

    monkeypatch.setattr("gapless.compile.static_programs.make_elsewhere", make)
    yield event
    event.set()


def affine(x):
    return x * 2 + 1


def compiled(**options):
    return torch.compile(affine, backend=gapless_backend, options=options)


@pytest.mark.thorough
def test_a_program_is_made_in_the_background(held, monkeypatch, capfd):
    monkeypatch.delenv("GAPLESS_COMPILE")
    function = compiled()
    x = torch.arange(4.0, device="gapless")
    for count in (1, 2):  # the compiler is busy, and nobody waits for it
        assert function(x).tolist() == [1, 3, 5, 7]
        assert statistics().eager == {"its program is being compiled": count}
    assert compiler_thread.pending() == 1
    held.set()
    wait_until_compiled()
    assert function(x).tolist() == [1, 3, 5, 7]
    assert statistics().launches == 1
    assert statistics().eager == {"its program is being compiled": 2}
    told = capfd.readouterr().err
    assert "float32[4], float32[4]" in told
    assert "compiled program" in told


def test_what_cannot_be_sent_to_the_compiler_is_waited_for_and_counted(monkeypatch):
    monkeypatch.setattr("gapless.compile.static_programs.pickled_request", lambda *_: None)
    function = compiled(mode="background")
    with pytest.warns(UserWarning, match="cannot be sent to another process, and is compiled"):
        assert function(torch.arange(4.0, device="gapless")).tolist() == [1, 3, 5, 7]
    assert statistics().waited == 1
    assert statistics().launches == 1


def test_what_goes_wrong_in_the_background_is_raised_once_and_tried_again(held, monkeypatch):
    held.failure = OSError("no compiler")
    function = compiled(mode="background")
    x = torch.arange(4.0, device="gapless")
    assert function(x).tolist() == [1, 3, 5, 7]
    failing = compiler_thread._pending.copy()
    held.set()
    for each in failing:
        assert isinstance(each.exception(60), OSError)
    with pytest.raises(OSError, match="no compiler"):
        function(x)
    held.failure = None
    assert function(x).tolist() == [1, 3, 5, 7]
    wait_until_compiled()
    assert function(x).tolist() == [1, 3, 5, 7]
    assert statistics().launches == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mode": "later"}, "mode='later': must be one of background, wait, never"),
        ({"shapes_limit": 0}, "shapes_limit=0: must be a whole number of at least 1"),
        ({"fast": True}, "unknown option 'fast'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, match):
    with pytest.raises((UsageError, torch._dynamo.exc.BackendCompilerFailed), match=match):
        compiled(**options)(torch.ones(3, device="gapless"))


def test_beyond_the_limit_shapes_run_operator_by_operator_and_are_counted():
    function = torch.compile(
        affine, backend=gapless_backend, dynamic=True, options={"shapes_limit": 1}
    )
    for size in (4, 6):
        assert function(torch.ones(size, device="gapless")).tolist() == [3] * size
    assert statistics().eager == {"more than 1 shapes": 1}
