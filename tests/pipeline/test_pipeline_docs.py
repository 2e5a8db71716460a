"""The examples of docs/pipeline.md run, and print what they say."""

import re
import warnings
from pathlib import Path

import pytest
import torch

from gapless.pipeline import PipelineWarning

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
IS_GAPLESS = getattr(torch.accelerator.current_accelerator(), "type", "") == "gapless"


@pytest.mark.skipif(not IS_GAPLESS, reason="the examples name the gapless device")
def test_the_examples_do_what_the_page_says(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 7
    names = {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for number, block in enumerate(blocks):
            exec(compile(block, f"pipeline.md, example {number}", "exec"), names)
    assert [each.category for each in warned] == [PipelineWarning]
    promised = re.findall(r"^print\(.*?(?:  # |\n# )(.*)$", "\n".join(blocks), re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == promised
    assert len(promised) == 2
