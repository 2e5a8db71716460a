import contextlib

import pytest
import torch
import typer

from gapless.cli.errors import reported
from gapless.errors import GaplessError, UsageError


def run(error, capsys):
    """The exit code of a command that raises this, and what it wrote to standard error."""

    @reported
    def command():
        raise error

    with pytest.raises(typer.Exit) as exit_info:
        command()
    return exit_info.value.exit_code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (GaplessError("no model; get one"), 1, "no model; get one"),
        (UsageError("too long; shorten it"), 2, "too long; shorten it"),
        (torch.OutOfMemoryError("wanted 3, free 2"), 1, "wanted 3, free 2"),
        (ValueError("odd\nmore"), 1, "ValueError: odd (GAPLESS_DEBUG=1 shows where)"),
        (
            RuntimeError("GAPLESS_MEMORY_LIMIT=1X: give bytes"),
            2,
            "GAPLESS_MEMORY_LIMIT=1X: give bytes",
        ),
        (RuntimeError(), 1, "RuntimeError: no message (GAPLESS_DEBUG=1 shows where)"),
    ],
)
def test_an_error_is_one_line_and_a_code(error, code, line, capsys, monkeypatch):
    monkeypatch.delenv("GAPLESS_DEBUG", raising=False)
    assert run(error, capsys) == (code, f"gapless: error: {line}\n")


def test_an_interrupt_is_130(capsys):
    assert run(KeyboardInterrupt(), capsys) == (130, "\ngapless: interrupted\n")


def test_debugging_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("GAPLESS_DEBUG", "1")

    @reported
    def command():
        raise UsageError("x")

    with pytest.raises(UsageError):
        command()


@pytest.mark.parametrize("error", [typer.Exit(3), typer.Abort(), typer.BadParameter("x")])
def test_typers_own_ways_out_pass(error):
    @reported
    def command():
        raise error

    with pytest.raises(type(error)):
        command()


def test_output_that_cannot_be_written_is_an_error(capsys, monkeypatch):
    @reported
    def command():
        print("something")

    with open("/dev/full", "w") as full, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", full)
        with pytest.raises(typer.Exit) as exit_info:
            command()
        patched.undo()
        with contextlib.suppress(OSError):
            full.close()
    assert exit_info.value.exit_code == 1
    assert "No space left on device" in capsys.readouterr().err
