"""The team whose helpers spin, compiled by itself, plain and under ThreadSanitizer."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("sanitizer", [None, "thread"])
def test_every_piece_is_called_once(tmp_path, sanitizer):
    program = tmp_path / "spin_team"
    flags = [] if sanitizer is None else [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    sources = ["tests/native/spin_team.cpp", "csrc/torch/spin_team.cpp"]
    compiler = os.environ.get("CXX", "g++")
    subprocess.run(
        [
            *(compiler, "-std=c++20", "-O1", "-g", *flags, "-Icsrc", *sources),
            *("-o", program, "-lpthread"),
        ],
        cwd=ROOT,
        check=True,
    )
    arguments = [] if sanitizer is None else ["without-fork"]
    result = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr[-2000:]
