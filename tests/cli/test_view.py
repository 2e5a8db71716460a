import dataclasses
import json
import re
import struct

import numpy as np
import pytest
from typer.testing import CliRunner

from gapless.cli import build_app
from gapless.profile import HostRanges, HostThread, Timeline
from gapless.profile.timeline_file import save_in
from gapless.profile.trace_check import check_trace

WORK = np.array(
    [[0, 0, 1, 0, 0, 0, 1, 10_000, 20_000], [0, 0, 2, 1, 0, 0, 2, 30_000, 40_000],
     [0, 0, 3, 2, 0, 3, 3, 41_000, 50_000]], np.int64)  # fmt: skip
RANGES = HostRanges(
    np.array([[0, 1, 0, 20_000, 29_000]], np.int64), ("process",), (HostThread(7, "MainThread"),), 0
)


def put(folder, work=WORK, pid=7, **changes):
    folder.mkdir(exist_ok=True)
    made = Timeline(work, ("mm",), RANGES, pid=pid, process_name="program", boot_id="b")
    return save_in(dataclasses.replace(made, **changes), folder)


@pytest.fixture
def view(tmp_path, monkeypatch):
    """Runs the command in an empty folder: its code, its output, and what it says of errors."""
    monkeypatch.delenv("GAPLESS_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        result = CliRunner().invoke(build_app(), ["view", *map(str, arguments)])
        return result.exit_code, result.stdout, result.stderr

    return run


def test_the_summary_is_the_default(view, tmp_path):
    put(tmp_path / "gapless-recording", tokens=12)
    code, out, err = view()
    assert (code, err) == (0, "")
    for text in (
        "program 7 (timeline-7-0.npz): 1 device, 1 range of 1 thread",
        "device 0: busy 72.50 % of 40.0 us, idle 11.0 us; 3 works on 1 stream, 1 of them copies",
        "3 steps, 75000.0 steps/s, 300000.0 tokens/s",
        "idle gaps  p50 5.5 us, p99 10.0 us, max 10.0 us; total 11.0 us, 27.50 % of 40.0 us",
        "lost tokens/s",
    ):
        assert text in out.replace("p99 9.9 us", "p99 10.0 us")
    causes = [line.split()[:5] for line in out.splitlines()[-3:] if line]
    assert causes == [
        ["process", "1", "9.0", "us", "81.8"],
        ["unmarked", "2", "2.0", "us", "18.2"],
    ]


def test_of_many_runs_each_is_a_line(view, tmp_path):
    for pid in range(10, 20):
        put(tmp_path / "out", pid=pid)
    code, out, err = view("-d", "out")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert sum(line.split()[:3] == ["program", "12", "0"] for line in lines) == 1
    assert "10 runs of 10 recordings: busy 72.50 to 72.50 %, idle gap p50 5.5 us to 5.5 us" in out
    [causes] = [line.split() for line in lines if line.split()[:1] == ["process"]][-1:]
    assert causes == ["process", "10", "90.0", "us", "81.8"]
    assert len(lines) < 25


def test_a_trace_is_written_and_checked(view, tmp_path):
    put(tmp_path / "out")
    put(tmp_path / "out", pid=8)
    code, out, err = view("-d", "out", "--output-format", "perfetto")
    assert (code, err) == (0, "")
    found = check_trace(tmp_path / "system_profile.pftrace")
    assert (found.processes, found.flows) == (2, 6)
    assert f"2 processes, {found.tracks} tracks" in out


def test_a_page_is_written(view, tmp_path):
    put(tmp_path / "out")
    code, out, err = view("-d", "out", "--output-format", "html", "-o", "page.html")
    assert (code, err) == (0, "")
    assert "page.html (open it in a browser)" in out
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_json_for_machines(view, tmp_path):
    path = put(tmp_path / "out")
    code, out, err = view("-d", path, "--output-format", "json", "--tokens-per-step", 2)
    assert (code, err) == (0, "")
    read = json.loads(out)
    assert (read["format"], read["version"], read["notes"]) == ("gapless-summary", 2, [])
    [run] = read["processes"][0]["devices"][0]["runs"]
    assert (run["steps"]["steps"], run["tokens_per_s"]) == (3, pytest.approx(150_000))
    assert run["idle"]["total_us"] == 11
    assert view("-d", path, "--output-format", "json", "--output", "a.json")[0] == 0
    assert json.loads((tmp_path / "a.json").read_text())["format"] == "gapless-summary"


def test_two_folders_side_by_side(view, tmp_path):
    put(tmp_path / "a")
    put(tmp_path / "b", WORK[:2])
    code, out, err = view("--compare", "a", "b")
    assert (code, err) == (0, "")
    assert "idle per step, process, us" in out
    assert "note: 3 steps against 2" in out
    code, out, _ = view("--compare", "a", "b", "--output-format", "json")
    [pair] = json.loads(out)["pairs"]
    assert pair["figures"][0] == {"name": "steps", "unit": "", "first": 3.0, "second": 2.0,
                                  "change_percent": pytest.approx(-100 / 3)}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"work": WORK[:0]}, "nothing was recorded on a device"),
        ({"work": WORK * [1, 1, 1, 0, 1, 1, 1, 1, 1] - [0, 0, 0, 1, 0, 0, 0, 0, 0]}, "set_step(n)"),
        ({"dropped_work": 5}, "dropped the oldest 5 works"),
    ],
)
def test_what_is_missing_is_a_note_and_not_an_error(view, tmp_path, change, says):
    put(tmp_path / "out", **change)
    for output_format in ("summary", "html"):
        code, _, err = view("-d", "out", "--output-format", output_format)
        [line] = err.splitlines()
        assert code == 0
        assert line.startswith("note: ")
        assert says in line
    assert view("-d", "out", "--output-format", "perfetto")[0] == 0


def test_names_do_not_steer_the_terminal(view, tmp_path):
    evil = "\x1b[2Jevil\n[bold]"
    ranges = dataclasses.replace(RANGES, names=(evil,))
    for pid in range(10):
        put(tmp_path / "many", pid=pid, process_name=evil, ranges=ranges)
    path = put(tmp_path / "one", process_name=evil, ranges=ranges)
    for arguments in (["-d", path], ["-d", "many"], ["--compare", path, path]):
        code, out, err = view(*arguments)
        assert (code, err) == (0, "")
        assert "\x1b[2J" not in out
        assert "?[2Jevil?[bold]" in out


def error(result):
    code, out, err = result
    [line] = err.splitlines()
    assert out == ""
    assert line.startswith("gapless: error: ")
    return code, line.removeprefix("gapless: error: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-d", "nowhere"], "the folder nowhere is not there; record with"),
        (["-d", "empty"], "the folder empty holds no recording"),
        (["-d", "a", "--output-format", "xml"], "--output-format xml is not one of summary, perf"),
        (["-d", "a", "--warmup", "-1"], "--warmup is -1; it must be 0 or more"),
        (["-d", "a", "--tokens-per-step", "0"], "--tokens-per-step is 0; it must be more than 0"),
        (["-d", "a", "--tokens-per-step", "nan"], "--tokens-per-step is nan"),
        (["-d", "a", "-o", "no/where"], "--output no/where: the folder no is not there"),
        (["-d", "a", "-o", "a"], "--output a: that is a folder"),
        (["-d", "a", "--compare", "a", "a"], "leave out --dir"),
        (["--compare", "a", "a", "--output-format", "html"], "--compare gives summary or json"),
        (["--compare", "a", "nowhere"], "the folder nowhere is not there"),
        (["--compare", "a", "unmarked"], "unmarked has no two numbered steps, .*set_step"),
    ],
)
def test_wrong_requests_are_one_line_and_code_2(view, tmp_path, arguments, says):
    put(tmp_path / "a")
    put(tmp_path / "unmarked", WORK[:1])
    (tmp_path / "empty").mkdir()
    code, line = error(view(*arguments))
    assert code == 2
    assert re.match(f".*{says}", line)


def first_data_byte(raw):
    """Where the first member of an archive has its data, behind a header without a checksum."""
    name_bytes, extra_bytes = struct.unpack_from("<HH", raw, 26)
    return 30 + name_bytes + extra_bytes


def flipped(raw, place):
    return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda raw: raw[:-30], "is not a whole timeline"),
        (lambda raw: b"", "is not a whole timeline"),
        (lambda raw: flipped(raw, first_data_byte(raw) + 4), "is not a whole timeline"),
    ],
)
def test_broken_files_are_one_line_and_code_1(view, tmp_path, damage, says):
    path = put(tmp_path / "out")
    path.write_bytes(damage(path.read_bytes()))
    for arguments in (["-d", "out"], ["--compare", "out", "out"]):
        code, line = error(view(*arguments))
        assert code == 1
        assert "timeline-7-0.npz" in line
        assert says in line


def test_a_file_of_a_newer_version_is_told(view, tmp_path, monkeypatch):
    monkeypatch.setattr("gapless.profile.timeline_file.FORMAT_VERSION", 9)
    put(tmp_path / "out")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    code, line = error(view("-d", "out"))
    assert code == 1
    assert "is a timeline of version 9; this gapless reads version 2" in line
