"""Errors as one line on standard error and an exit code, instead of a traceback."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

FAILED = 1
WRONG_USAGE = 2
CLOSED_PIPE = 141  # what a shell reports for a process that ended by SIGPIPE
INTERRUPTED = 130  # what a shell reports for a process that ended by Ctrl-C
DEBUG_VARIABLE = "GAPLESS_DEBUG"

P = ParamSpec("P")
R = TypeVar("R")


def reported(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command so that what it raises is told in one line and gives the exit code.

    With ``GAPLESS_DEBUG=1`` errors pass through with their traceback.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        import typer

        try:
            result = command(*args, **kwargs)
            # What could not be written is told like any other error, and not at exit.
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            print_interrupted()
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # who read the output has enough of it
            # What is buffered still would be written at exit, and would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(CLOSED_PIPE) from None
        except Exception as error:
            if os.environ.get(DEBUG_VARIABLE) == "1" or _is_control_flow(error):
                raise
            print(f"gapless: error: {one_line(error)}", file=sys.stderr)
            raise typer.Exit(exit_code(error)) from None

    return wrapped


def print_interrupted() -> None:
    """Say that Ctrl-C ended the command, on a line of its own."""
    print("\ngapless: interrupted", file=sys.stderr)


def exit_code(error: Exception) -> int:
    """2 where another request would succeed, 1 where this one failed."""
    from gapless.errors import UsageError

    return WRONG_USAGE if isinstance(error, UsageError) or _is_of_a_variable(error) else FAILED


def one_line(error: Exception) -> str:
    """The message for the user; of an error that is not ours, its kind and its first line."""
    import torch

    from gapless.errors import GaplessError

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = isinstance(error, GaplessError | torch.OutOfMemoryError | torch.AcceleratorError)
    if lines and (ours or _is_of_a_variable(error)):
        return lines[0]
    first = lines[0] if lines else "no message"
    return f"{type(error).__name__}: {first} ({DEBUG_VARIABLE}=1 shows where)"


def _is_of_a_variable(error: Exception) -> bool:
    """Whether the device refuses an environment variable of its own, which PyTorch passes on."""
    return isinstance(error, RuntimeError | ValueError) and str(error).startswith("GAPLESS_")


def _is_control_flow(error: Exception) -> bool:
    # Exit and Abort are typer's own way out, and its usage errors print themselves. Their base
    # classes have moved between packages, so they are told by their own module.
    return type(error).__module__.split(".")[0] in ("typer", "click")
