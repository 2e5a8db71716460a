import os
import signal
import subprocess
import sys
import textwrap

import pytest
from child import run


def test_exit_with_work_in_flight_is_clean():
    done = run(
        """
        import torch
        block = torch.randn(600, 600, device="gapless")
        graph = torch.accelerator.Graph()
        with graph:
            out = block @ block
        for _ in range(2000):
            graph.replay()
            block @ block
        print("leaving", torch.accelerator.current_stream().query())
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving False\n", "")


def test_fork_before_first_use_works_in_the_child():
    done = run(
        """
        import os, torch
        pid = os.fork()
        value = torch.full((3,), 2.0, device="gapless").sum().item()
        if pid != 0:
            os.waitpid(pid, 0)  # so that the two do not write at once
        print("child" if pid == 0 else "parent", value, flush=True)
        if pid == 0:
            os._exit(0)
        """
    )
    assert done.stdout == "child 6.0\nparent 6.0\n", done.stderr


def test_fork_after_first_use_is_a_clear_error_in_the_child():
    done = run(
        """
        import os, torch
        kept = torch.ones(3, device="gapless")
        pinned = torch.ones(3, pin_memory=True)
        pid = os.fork()
        if pid == 0:
            try:
                torch.ones(3, device="gapless")
            except RuntimeError as error:
                print(error, flush=True)
            del kept, pinned
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), kept.sum().item())
        """
    )
    assert "before this process was forked" in done.stdout, done.stderr
    assert "spawn" in done.stdout
    assert done.stdout.endswith("0 3.0\n")


def test_a_long_wait_answers_ctrl_c():
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                """
                import torch
                block = torch.randn(700, 700, device="gapless")
                for _ in range(20000):
                    torch.mm(block, block, out=torch.empty_like(block))
                print("waiting", flush=True)
                torch.accelerator.synchronize()
                """
            ),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert child.returncode in (1, 130, -signal.SIGINT)


@pytest.mark.parametrize("value", ["999", "0", "-1", "two", "0-999", "1,", "3-1"])
def test_bad_device_cores(value):
    done = run(
        """
        import torch
        try:
            torch.ones(1, device="gapless")
        except RuntimeError as error:
            print(error)
        """,
        GAPLESS_DEVICE_CORES=value,
        GAPLESS_DRIVER="cpu",
    )
    assert f"GAPLESS_DEVICE_CORES={value}: this process may run on" in done.stdout, done.stderr
    assert "give a count from 1 to" in done.stdout


def test_device_threads_stay_on_their_cores():
    cores = sorted(os.sched_getaffinity(0))
    done = run(
        """
        import os, torch
        torch.ones(1, device="gapless").item()
        for task in os.listdir("/proc/self/task"):
            if open(f"/proc/self/task/{task}/comm").read().startswith("gapless"):
                print(sorted(os.sched_getaffinity(int(task))))
        print(torch.gapless.cores.plan())
        """,
        GAPLESS_DEVICE_CORES=f"{cores[0]}-{cores[0]}",
        GAPLESS_DRIVER="cpu",
    )
    assert done.stdout.startswith(f"[{cores[0]}]\n"), done.stdout + done.stderr
    assert f"device_cores=({cores[0]},)" in done.stdout


@pytest.mark.parametrize("value", ["abc", "-21", "20"])
def test_a_bad_niceness(value):
    done = run(
        "import torch; torch.ones(1, device='gapless')",
        GAPLESS_DEVICE_NICE=value,
        GAPLESS_DRIVER="cpu",
    )
    assert f"GAPLESS_DEVICE_NICE={value}: give a whole number" in done.stderr
