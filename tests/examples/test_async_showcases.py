"""The showcases run, compare what they say they compare, and refuse what cannot work."""

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

FOLDER = Path(__file__).parents[2] / "examples" / "async"
STEPS = 14
SMALL = ("--hidden", "32", "--steps", str(STEPS))
RUNS = {
    "async_vs_sequential.py": (),
    "async_vs_sequential_autoregressive.py": ("--sequential",),
    "async_llm.py": ("--double-buffer", "--world-size", "2"),
    "async_llm_autoregressive.py": ("--world-size", "2"),
}
MODES = {
    "async_vs_sequential.py": ["sequential", "double-buffered"],
    "async_vs_sequential_autoregressive.py": ["sequential"],
    "async_llm.py": ["double-buffered"],
    "async_llm_autoregressive.py": ["sequential", "double-buffered"],
}


def _start(name, *arguments):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GAPLESS_SIM_")
    }
    return subprocess.Popen(
        [sys.executable, str(FOLDER / name), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """All at once: they spend their time importing."""
    folder = tmp_path_factory.mktemp("showcases")
    running = {}
    for name, arguments in RUNS.items():
        path = folder / f"{name}.json"
        running[name] = _start(name, *SMALL, *arguments, "--json", str(path)), path
    yield running
    for process, _ in running.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", RUNS)
def test_a_showcase(started, name):
    process, path = started[name]
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    content = json.loads(path.read_text())
    assert [mode["mode"] for mode in content["modes"]] == MODES[name]
    for mode in content["modes"]:
        assert mode["workers"] == (2 if "llm" in name else 1)
        assert mode["steps"] == STEPS
        assert mode["steps_per_s"] > 0
        assert 0 < mode["busy_percent"] <= 100
        assert mode["gap_p50_us"] <= mode["gap_p99_us"]
        # The device's clock is virtual: a program takes what was stated, and no less.
        assert mode["step_us"] >= 5180
    # Not of this run, where nothing is computed, but of one that computes.
    assert "16 steps of both modes, computed at 256 wide, are equal to the bit" in out
    assert content["compared"] in " ".join(out.split())


def _refused(monkeypatch, name, *arguments):
    """What a showcase says to arguments that it refuses before anything runs."""
    monkeypatch.syspath_prepend(str(FOLDER))
    app = typer.Typer()
    app.command()(importlib.import_module(name).main)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    return " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("mode", ["--double-buffer", "--sequential"])
@pytest.mark.parametrize("name", [name.removesuffix(".py") for name in RUNS])
def test_too_few_inputs_are_refused(monkeypatch, name, mode):
    assert "1 inputs are too few" in _refused(monkeypatch, name, mode, "--steps", "1")


@pytest.mark.parametrize("name", ["async_llm", "async_llm_autoregressive"])
def test_no_workers_are_refused(monkeypatch, name):
    assert "Invalid value for '--world-size'" in _refused(monkeypatch, name, "--world-size", "0")


@pytest.mark.parametrize("name", [name.removesuffix(".py") for name in RUNS])
def test_two_modes_by_name_are_refused(monkeypatch, name):
    said = _refused(monkeypatch, name, "--double-buffer", "--sequential")
    assert "give one of them, or neither for both modes side by side" in said


@pytest.mark.parametrize("name", [name.removesuffix(".py") for name in RUNS])
def test_a_driver_of_another_device_is_refused(monkeypatch, name):
    said = _refused(monkeypatch, name, "--device", "cpu", "--driver", "sim")
    assert "the device cpu has no driver to choose; leave --driver out" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--device", "nonsense"), "there is no device 'nonsense', only cpu and gapless"),
        (("--driver", "nonsense"), "nonsense"),
    ],
)
def test_a_device_that_is_not_there_is_a_usage_error(arguments, says):
    """In a process of its own, since a driver is chosen once."""
    process = _start("async_llm.py", *SMALL, *arguments)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    assert says in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err


def test_a_port_in_use_is_refused():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        process = _start("async_llm.py", *SMALL, "--world-size", "2", "--port", str(port))
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"port {port} is in use; choose another" in err
