import torch
from typer.testing import CliRunner

import gapless
from gapless.cli import build_app


def test_it_prints_both_versions():
    result = CliRunner().invoke(build_app(), ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"gapless {gapless.__version__}, torch {torch.__version__}\n"
