"""What goes wrong in a worker is told with its rank, and nothing stays behind."""

import os
import select
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from gapless.pipeline import AsyncExecutor, PipelineWarning, WarmParent, WorkerError
from tests.pipeline import executor_loads as loads

pytestmark = pytest.mark.skipif(
    not torch.accelerator.is_available(), reason="the steps of these tests run on the device"
)


@pytest.fixture(scope="module")
def parent():
    with WarmParent() as warm:
        yield warm


def _watched(pids):
    """Descriptors that tell of the end of processes, also of those that end later."""
    found = []
    for pid in pids:
        try:
            found.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    return found


def _require_gone(descriptors):
    for descriptor in descriptors:
        ready, _, _ = select.select([descriptor], [], [], 60)
        os.close(descriptor)
        assert ready, "a worker has outlived its executor"


def _require_unusable(executor):
    for call in (executor.collect, lambda: executor.broadcast(0), lambda: executor.call(os.getpid)):
        with pytest.raises(RuntimeError, match="make a new executor"):
            call()
    executor.shutdown()  # harmless


def _error_of(parent, load, inputs=None, **arguments):
    """The error of feeding 0, 1, 2 ... to two workers, which are gone then."""
    executor = AsyncExecutor(2, load, parent=parent, **arguments)
    watched = _watched(executor.pids)
    with pytest.raises(WorkerError) as caught:
        for _ in executor.map(inputs or [torch.full((2,), float(n)) for n in range(8)]):
            pass
    _require_gone(watched)
    _require_unusable(executor)
    return caught.value


@pytest.mark.parametrize("load", [loads.failing_step, loads.failing_prepare])
def test_an_error_in_a_step(parent, load):
    error = _error_of(parent, load)
    assert (error.rank, error.step) == (1, 2)
    assert "worker 1 failed in step 2" in str(error)
    assert "two is not welcome" in str(error)
    assert "executor_loads.py" in error.worker_traceback
    assert "in worker 1:" in error.__notes__[0]
    assert isinstance(error.__cause__, ValueError)


@pytest.mark.parametrize("load", [loads.failing_on_device, loads.failing_on_device_captured])
def test_an_error_on_the_device(parent, load):
    error = _error_of(parent, load, [torch.tensor([n]) for n in (0, 1, 7, 2, 0, 1)])
    assert error.rank in (0, 1)
    assert "index" in str(error)


def test_an_error_in_load(parent):
    with pytest.raises(WorkerError, match="worker 1 failed while it loaded") as caught:
        AsyncExecutor(2, loads.failing_load, parent=parent)
    assert caught.value.rank == 1
    assert "no weights here" in caught.value.worker_traceback


def test_load_must_return_a_step(parent):
    with pytest.raises(WorkerError, match="load returned int"):
        AsyncExecutor(1, loads.not_a_step, parent=parent)


def test_a_death_in_load(parent):
    with pytest.raises(WorkerError, match="worker 1 ended with exit code 7") as caught:
        AsyncExecutor(2, loads.dying_load, parent=parent)
    assert (caught.value.rank, caught.value.exit_code) == (1, 7)


def test_a_step_that_kills_its_process(parent):
    error = _error_of(parent, loads.dying_step, device="cpu")
    assert (error.rank, error.exit_code) == (1, -signal.SIGKILL)
    assert "worker 1 was killed by SIGKILL" in str(error)


def test_a_captured_step_whose_process_is_killed(parent):
    error = _error_of(parent, loads.dying_prepare)
    assert (error.rank, error.exit_code) == (1, -signal.SIGKILL)


def test_captured_steps_of_one_executor_are_alike(parent):
    with pytest.raises(ValueError, match=r"load\(1\) returned a step of other inputs or results"):
        AsyncExecutor(2, loads.captured_differently, parent=parent)


def test_a_step_that_leaves(parent):
    error = _error_of(parent, loads.leaving_step, device="cpu")
    assert (error.rank, error.exit_code) == (1, 0)


def test_a_worker_killed_while_nobody_looks(parent):
    executor = AsyncExecutor(2, loads.echo, device="cpu", parent=parent)
    watched = _watched(executor.pids)
    os.kill(executor.pids[0], signal.SIGKILL)
    _require_gone(watched)  # the other one, too, without a call
    with pytest.raises(WorkerError, match="worker 0 was killed by SIGKILL"):
        executor.broadcast(1)
    _require_unusable(executor)


def test_an_error_is_told_while_another_worker_hangs(parent):
    error = _error_of(parent, loads.waiting_for_ever, device="cpu")
    assert (error.rank, error.step) == (1, 1)


def test_an_error_in_a_call(parent):
    with AsyncExecutor(2, loads.echo, device="cpu", port=0, parent=parent) as executor:
        with pytest.raises(WorkerError, match="worker 1 failed") as caught:
            executor.call(loads.fail_if, "1")
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_load_that_does_not_end(parent):
    with pytest.raises(TimeoutError, match=r"load\(0\) did not end within 0.2 s"):
        AsyncExecutor(1, loads.never_loading, start_timeout_s=0.2, parent=parent)


def test_workers_that_do_not_stop_are_killed(parent):
    executor = AsyncExecutor(1, loads.deaf, device="cpu", parent=parent)
    watched = _watched(executor.pids)
    executor.broadcast(0)
    with pytest.warns(PipelineWarning, match=r"workers \[0\] did not end within 0.1 s"):
        executor.shutdown(timeout_s=0.1)
    _require_gone(watched)
    with pytest.raises(RuntimeError, match="shut down"):
        executor.collect()


def test_an_exception_of_the_caller_ends_the_workers(parent):
    watched = []

    def program():
        with AsyncExecutor(2, loads.deaf, device="cpu", parent=parent) as executor:
            watched.extend(_watched(executor.pids))
            executor.broadcast(0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    _require_gone(watched)


def test_an_executor_that_is_forgotten_ends_its_workers(parent):
    executor = AsyncExecutor(2, loads.echo, device="cpu", parent=parent)
    watched = _watched(executor.pids)
    with pytest.warns(ResourceWarning, match="was not shut down"):
        del executor
    _require_gone(watched)


def test_no_orphan_when_the_caller_is_killed(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent("""
        import os, sys
        from gapless.pipeline import AsyncExecutor

        def load(rank):
            return lambda x: x + rank

        if __name__ == "__main__":
            executor = AsyncExecutor(2, load, device="cpu")
            executor.broadcast(1)
            print(executor.collect(), flush=True)
            print(*executor.pids, flush=True)
            sys.stdin.read()
    """)
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "[1, 2]\n"
        watched = _watched(map(int, program.stdout.readline().split()))
        assert len(watched) == 2
        program.kill()
        _require_gone(watched)


def test_a_warm_parent_that_died():
    with WarmParent() as warm:
        executor = AsyncExecutor(2, loads.echo, device="cpu", parent=warm)
        watched = _watched(executor.pids)
        os.kill(warm._process.pid, signal.SIGKILL)
        _require_gone(watched)
        with pytest.raises(WorkerError, match="forked from has died"):
            executor.broadcast(1)
        with pytest.raises(RuntimeError, match="make a new WarmParent"):
            AsyncExecutor(1, loads.echo, device="cpu", parent=warm)
