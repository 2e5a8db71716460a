"""What is being done, on one line with a spinner, or as plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def stderr_console() -> Console:
    """A console on standard error, bound now, so that a later redirection does not silence it."""
    import sys

    from rich.console import Console

    return Console(file=sys.stderr, highlight=False)


def stdout_console() -> Console:
    """A console on standard output; 100 columns wide where there is no terminal."""
    import sys

    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = 100
    return console


@contextmanager
def working(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done while the block runs; yields a function that says what comes next."""
    if not console.is_terminal:
        console.print(what, markup=False)
        yield lambda text: console.print(text, markup=False)
        return
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(escape(what), total=None)
        yield lambda text: progress.update(task, description=escape(text))
