"""The examples of docs/executor.md run, each in processes of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "executor.md"

pytestmark = pytest.mark.skipif(
    getattr(torch.accelerator.current_accelerator(), "type", "") != "gapless",
    reason="the examples name the gapless device",
)


def _files():
    """The page's files in their order: their names, and what is in them."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    parts = [re.split(r"^# (\w+\.py)\n", block, flags=re.MULTILINE) for block in blocks]
    assert all(part[0] == "" for part in parts), "an example does not say which file it is"
    return [(part[i], part[i + 1]) for part in parts for i in range(1, len(part), 2)]


def _run(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.thorough
def test_the_examples_run(tmp_path):
    (first, steps), (second, program), (third, with_parent), (fourth, captured) = _files()
    assert [first, second, third, fourth] == ["steps.py", "program.py", "program.py", "steps.py"]
    lines = _run(tmp_path, steps=steps, program=program)
    assert lines == [str([torch.Size([8])] * 4)] * 10
    assert _run(tmp_path, steps=steps, program=with_parent) == ["1 4", "2 4"]
    # The captured step in the place of the other one, with inputs as it takes them.
    tokens = with_parent.replace("torch.ones(8, 64)", "torch.arange(95, 103)")
    assert tokens != with_parent
    assert _run(tmp_path, steps=captured, program=tokens) == ["1 4", "2 4"]
