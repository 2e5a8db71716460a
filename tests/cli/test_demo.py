import json

import pytest
import torch
from typer.testing import CliRunner

from gapless.cli import build_app, in_process_demo
from gapless.cli.demo_report import DemoReport, Row, as_json, describe, print_report
from gapless.pipeline.divergence import Divergence
from gapless.pipeline.measured_run import IdleFigures, RunFigures
from tests.tiny_model import save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def invoke(*arguments):
    return CliRunner().invoke(build_app(), ["demo", *arguments])


def accelerator():
    return torch.accelerator.current_accelerator(check_available=True)


def figures(rows=1, depth=1, idle=None):
    return RunFigures(
        device="gapless",
        rows=rows,
        depth=depth,
        tokens=((1, 2),) * rows,
        steps=2,
        tokens_per_s=12.34,
        step_p50_us=325_000.0,
        step_p99_us=426_000.0,
        submit_p50_us=20.0,
        idle=idle,
        timeline=None,
    )


def report(divergence=None):
    idle = IdleFigures(1450.0, 15500.0, 29612.0, 97.5)
    rows = (
        Row("cpu, eager", figures(), None),
        Row("sequential", figures(idle=idle), None),
        Row("double-buffered", figures(depth=2, idle=idle), divergence),
    )
    return DemoReport("tiny", "float32", "gapless", 400, rows, None)


def test_the_table_fits_a_narrow_terminal_and_has_every_figure(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_report(report())
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert max(len(line) for line in lines) <= 80
    row = next(line for line in lines if "sequential" in line)
    assert row.split() == [
        "1",
        "sequential",
        "12.3",
        "325.0/426.0",
        "1450/15500/29612",
        "97.50",
        "identical",
    ]
    assert "reference" in printed


def test_a_divergence_is_told_with_row_position_tokens_and_margin(capsys):
    found = Divergence(row=3, position=17, expected=5, found=None, margin=1.5e-5)
    diverged = report(found)
    assert not diverged.identical
    assert describe(diverged.rows[2]) == (
        "batch 1, double-buffered: row 3 differs from the reference at new token 17: the end "
        "instead of 5; the reference's two largest logits are 1.5e-05 apart there"
    )
    print_report(diverged)
    printed = capsys.readouterr().out
    assert "differ" in printed
    assert "at new token 17" in printed
    assert as_json(diverged)["runs"][2]["divergence"]["position"] == 17


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tokens", "1"), "--tokens is 1; at least 2"),
        (("--host-work-us", "-1"), "--host-work-us is -1; it must be 0 or more"),
        (("--device", "xpu"), "there is no device 'xpu'"),
    ],
)
def test_wrong_options_are_one_line(arguments, words):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.skipif(accelerator() is None, reason="needs an accelerator")
def test_a_whole_demo(folder, tmp_path):
    json_path, trace = tmp_path / "demo.json", tmp_path / "demo.pftrace"
    result = invoke(
        *("--in-process", "--model", str(folder), "--dtype", "float32", "--tokens", "12"),
        *("--device", accelerator().type, "--host-work-us", "50"),
        *("--json", str(json_path), "--trace", str(trace)),
    )
    assert result.exit_code == 0, result.output
    data = json.loads(json_path.read_text())
    assert data["tokens_identical"]
    assert [(run["batch"], run["mode"]) for run in data["runs"]] == [
        (batch, mode)
        for batch in (1, 8)
        for mode in ("cpu, eager", "sequential", "double-buffered")
    ]
    if accelerator().type == "gapless":
        assert trace.stat().st_size > 0
        assert str(trace) in result.stdout.replace("\n", "")
        assert all(run["idle"] for run in data["runs"] if run["mode"] != "cpu, eager")


def test_tokens_that_differ_fail_the_demo(folder, tmp_path, monkeypatch):
    wrong = Divergence(row=0, position=1, expected=2, found=3, margin=0.5)
    diverged = report(wrong)
    monkeypatch.setattr(in_process_demo, "run_demo", lambda *_: diverged)
    result = invoke("--in-process", "--json", str(tmp_path / "demo.json"))
    assert result.exit_code == 1
    assert not json.loads((tmp_path / "demo.json").read_text())["tokens_identical"]
