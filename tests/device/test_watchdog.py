"""The watchdog names work that does not end. What does not end here reads from a pipe."""

import os
import re
import subprocess
import sys

import pytest
from child import run

BLOCKING = """
import os, sys, torch
from gapless import _C
reader, writer = os.pipe()
library = torch.library.Library("gapless_tests", "FRAGMENT")
library.define("block(Tensor(a!) tensor, int fd) -> ()")
def read(tensor, fd):
    os.read(fd, 1)
library.impl("block", read, "CPU")
x = torch.ones(2, 3, device="gapless")
torch.accelerator.synchronize()
stream, side, third = torch.accelerator.current_stream(), *[torch.Stream("gapless") for _ in "ab"]
def block(fd=reader):
    torch.ops.gapless_tests.block(x, fd)
"""


def start(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BLOCKING + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def read_until(child: subprocess.Popen[str], pattern: str) -> str:
    """What the child writes to stderr up to and with the first line that matches."""
    assert child.stderr is not None
    lines = ""
    for line in child.stderr:
        lines += line
        if re.search(pattern, line):
            return lines
    pytest.fail(f"no line matches {pattern!r} in:\n{lines}")


def test_it_names_the_work_and_all_that_waits_and_says_when_it_ended():
    child = start(
        """
torch.gapless.recorder.set_step(5)
block(0)
x.add_(1)
side.wait_event(stream.record_event())
third.wait_event(side.record_event())
with side:
    x.add_(1)
torch.accelerator.synchronize()
print("done", _C.watchdog_reports())
""",
        GAPLESS_WATCHDOG_S="0.1",
    )
    text = read_until(child, "host thread .* waits for gapless:0, stream 0 since")
    report = "gapless watchdog:" + text.rsplit("gapless watchdog:", 1)[1]
    assert re.search(
        r"work \d+ on gapless:0, stream 0 \(gapless_tests::block\) has not ended for \d+\.\d s\n",
        report,
    )
    assert "operands: Float[2, 3]" in report
    assert re.search(r"submitted at <string>:\d+ in block in step 5\n", report)
    assert "1 work(s) queued behind it" in report
    assert re.search(
        r"stream 1 waits for gapless:0, stream 0 since .* with 1 work\(s\) queued", report
    )
    assert "stream 2 waits for gapless:0, stream 1 since" in report
    assert re.search(r"host thread \d+ waits .*, at <string>:\d+ in <module>", report)
    assert child.stdin is not None
    child.stdin.write("x")
    child.stdin.flush()
    read_until(child, r"stream 0 \(gapless_tests::block\) ended after all, after about")
    output, errors = child.communicate(timeout=60)
    assert (output, errors, child.returncode) == ("done 1\n", "", 0)


def test_it_reports_again_with_growing_intervals():
    child = start("block(0)\nstream.synchronize()", GAPLESS_WATCHDOG_S="0.1")
    times_s = []
    for _ in range(4):
        text = read_until(child, "has not ended for")
        times_s.append(float(re.findall(r"has not ended for ([\d.]+) s", text)[-1]))
    assert all(time_s >= least for time_s, least in zip(times_s, (0.1, 0.2, 0.4, 0.8), strict=True))
    child.communicate("x", timeout=60)
    assert child.returncode == 0


def test_a_replay_that_hangs_names_the_work_inside():
    child = start(
        """
graph = torch.accelerator.Graph()
graph.capture_begin()
x.add_(1)
block(0)
graph.capture_end()
graph.replay()
stream.synchronize()
""",
        GAPLESS_WATCHDOG_S="0.1",
    )
    text = read_until(child, "operands: ")
    assert "(graph replay) has not ended" in text
    assert "at work 2 of 2, gapless_tests::block (Float[2, 3]), captured at <string>:" in text
    child.communicate("x", timeout=60)
    assert child.returncode == 0


def test_it_starts_in_a_child_that_was_forked_before_the_first_use():
    code = BLOCKING.replace("x = torch.ones", "child = os.fork()\nx = torch.ones", 1)
    done = run(
        code
        + """
block()
while not _C.watchdog_reports():
    pass
os.write(writer, b"x")
stream.synchronize()
if child == 0:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
        GAPLESS_WATCHDOG_S="0.05",
    )
    assert done.stdout == "0\n", done.stderr
    assert len(re.findall("has not ended", done.stderr)) >= 2


def test_work_that_ends_in_time_is_not_mentioned():
    done = run(
        BLOCKING
        + """
for _ in range(3000):
    x.add_(1)
stream.synchronize()
print(_C.watchdog_reports())
""",
        GAPLESS_WATCHDOG_S="60",
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


_BAD_TIMES = ("-1", "nan", "inf", "5s", "1e9")


@pytest.mark.parametrize(
    "value", ["soon", "0", *(pytest.param(each, marks=pytest.mark.thorough) for each in _BAD_TIMES)]
)
def test_a_bad_time(value):
    done = run("import torch; torch.ones(1, device='gapless')", GAPLESS_WATCHDOG_S=value)
    assert f"GAPLESS_WATCHDOG_S={value}: give seconds, from 0.001 to" in done.stderr
