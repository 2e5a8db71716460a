import json

import numpy as np
import pytest
from typer.testing import CliRunner

from gapless.cli import build_app, in_process_demo, serve_demo
from gapless.cli.demo_report import DemoReport
from gapless.cli.serve_demo import ASYNCHRONOUS, SYNCHRONOUS, Difference, ServeReport
from gapless.cli.serve_load import Answer, figures
from gapless.cli.serve_report import as_json, describe, print_report
from gapless.profile import Timeline
from gapless.profile.timeline import WORK_COLUMNS

MS = 1_000_000


def answer(start_ms=0, pieces_ms=(30, 40, 60), tokens=(1, 2, 3)):
    piece_ns = tuple(int(each * MS) for each in pieces_ms)
    return Answer((9, 8), tokens, "text", int(start_ms * MS), piece_ns)


def recording():
    """Three steps of 10 ms with gaps of 2 and 4 ms, and one long before the load."""
    work = np.zeros((4, len(WORK_COLUMNS)), np.int64)
    for row, (step, start, end) in enumerate(
        [(0, -900, -890), (1, 20, 30), (2, 32, 42), (3, 46, 56)]
    ):
        for name, value in (("step", step), ("work", row)):
            work[row, WORK_COLUMNS.index(name)] = value
        for name, value in (("submit_ns", start), ("start_ns", start), ("end_ns", end)):
            work[row, WORK_COLUMNS.index(name)] = (value + 1000) * MS
    return Timeline(work, ("step",))


def report(*differences):
    rows = [
        serve_demo._row(mode, (answer(1000, (1030, 1040, 1060)),) * count, recording())
        for count in (1, 8)
        for mode in (SYNCHRONOUS, ASYNCHRONOUS)
    ]
    return ServeReport("tiny", "float32", {}, tuple(rows), differences, None)


def test_figures_of_a_load():
    load = figures((answer(), answer(10, (110, 130), (4, 5))))
    assert (load.requests, load.tokens, load.seconds) == (2, 5, pytest.approx(0.13))
    assert load.tokens_per_s == pytest.approx(5 / 0.13)
    assert (load.first_token_p50_ms, load.first_token_max_ms) == (65, 100)
    assert load.inter_token_p50_ms == 20  # of 10, 20 and 20


def test_only_what_ran_during_the_load_counts():
    idle = report().rows[0].idle
    assert idle.steps.steps == 3
    assert [gap.idle_ns for gap in idle.gaps] == [2 * MS, 4 * MS]
    assert idle.steps.busy_percent == pytest.approx(100 * 30 / 36)


def test_a_recording_without_steps_gives_a_row_without_gaps():
    assert serve_demo._row(SYNCHRONOUS, (answer(),), None).idle is None
    early = serve_demo._row(SYNCHRONOUS, (answer(),), recording())  # all of it came later
    assert early.idle is None


def test_the_table_fits_a_narrow_terminal_and_has_every_figure(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_report(report())
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    row = next(line for line in lines if ASYNCHRONOUS in line)
    assert row.split() == ["1", "asynchronous", "50.0", "30", "15.0/19.9", "3000/3980", "83.33"]
    assert "the tokens are identical in both modes" in lines


def test_a_difference_is_told_and_counts_unless_rounding_may_choose(capsys):
    far = Difference(8, 3, 17, 5, None, 1.5, False)
    near = Difference(1, 0, 2, 5, 6, 0.0001, True)
    assert report(near).identical
    assert not report(near, far).identical
    assert describe(far) == (
        "8 at once: answer 3 differs at new token 17: 5 synchronously, the end asynchronously; "
        "the two likeliest are 1.5 apart there"
    )
    assert describe(near).endswith("near enough for rounding to choose")
    data = json.loads(json.dumps(as_json(report(near, far))))
    assert not data["tokens_identical"]
    assert [load["mode"] for load in data["loads"]] == [SYNCHRONOUS, ASYNCHRONOUS] * 2
    assert data["loads"][0]["idle"]["p50_us"] == 3000


def test_the_first_difference_is_found_also_past_an_end():
    assert serve_demo._first_difference(answer(), answer()) is None
    assert serve_demo._first_difference(answer(), answer(tokens=(1, 7, 3))) == 1
    assert serve_demo._first_difference(answer(), answer(tokens=(1, 2))) == 2


def test_the_demo_exits_by_what_it_found(monkeypatch, tmp_path):
    monkeypatch.setattr("gapless.cli.demo.why_no_server", lambda: None)
    for differences, code in (((), 0), ((Difference(1, 0, 0, 1, 2, 3.0, False),), 1)):
        monkeypatch.setattr(serve_demo, "run_demo", lambda *_, d=differences: report(*d))
        path = tmp_path / "demo.json"
        result = CliRunner().invoke(build_app(), ["demo", "--json", str(path)])
        assert result.exit_code == code, result.output
        assert json.loads(path.read_text())["tokens_identical"] == (code == 0)


def test_without_vllm_the_demo_runs_in_one_process_and_says_so(monkeypatch):
    monkeypatch.setattr("gapless.cli.demo.why_no_server", lambda: "vLLM is not installed")
    same = DemoReport("tiny", "float32", "gapless", 400, (), None)
    monkeypatch.setattr(in_process_demo, "run_demo", lambda *_: same)
    result = CliRunner().invoke(build_app(), ["demo"])
    assert result.exit_code == 0, result.output
    assert "in one process, without a server: vLLM is not installed" in result.stderr
