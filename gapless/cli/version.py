"""``gapless --version``."""

from typing import Annotated

import typer


def print_version(asked: bool) -> None:
    """Print the versions of gapless and of the torch that it runs in, and exit."""
    if not asked:
        return
    import torch

    from gapless import __version__
    from gapless.cli.errors import reported

    reported(print)(f"gapless {__version__}, torch {torch.__version__}")
    raise typer.Exit


def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version, is_eager=True, help="Print the versions and exit."
        ),
    ] = False,
) -> None:
    """An asynchronous PyTorch device that never waits for the host, with the proof."""
