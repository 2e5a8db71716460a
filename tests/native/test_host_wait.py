"""The host's waits, in C++."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_waits_expect(tmp_path):
    program = tmp_path / "host_wait"
    compiler = os.environ.get("CXX", "g++")
    sources = [ROOT / "tests/native/host_wait.cpp", ROOT / "csrc/runtime/host_wait.cpp"]
    subprocess.run(
        [compiler, "-std=c++20", "-O1", f"-I{ROOT / 'csrc'}", *sources, "-o", program, "-lpthread"],
        check=True,
    )
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
