"""The examples of docs/compile.md run."""

import re
from pathlib import Path

import pytest
import torch

from gapless.compile import statistics

PAGE = Path(__file__).parents[2] / "docs" / "compile.md"


@pytest.mark.thorough
def test_the_examples_do_what_the_page_says(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    names = {"torch": torch, "model": torch.nn.Linear(4, 2)}
    for number, block in enumerate(blocks):
        exec(compile(block, f"compile.md, example {number}", "exec"), names)
    assert names["model"](torch.ones(3, 4, device="gapless")).shape == (3, 2)
    padding, counts = capsys.readouterr().out.splitlines()
    assert "4" in padding
    assert counts.startswith("CompileStatistics(compiled=1")
    assert statistics().compiled == 2
