"""The command line: ``gapless serve``, ``demo``, ``generate``, ``view``, ``doctor`` and ``cache``.

Commands import what they need when they run, so that ``gapless --help`` does not load a model
library first.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gapless.cli.errors import INTERRUPTED, print_interrupted, reported

if TYPE_CHECKING:
    import typer


def build_app() -> typer.Typer:
    """The application with all its commands."""
    import typer

    from gapless.cli.cache import build_cache_app
    from gapless.cli.demo import demo
    from gapless.cli.doctor import doctor
    from gapless.cli.generate import generate
    from gapless.cli.serve import CONTEXT, serve
    from gapless.cli.version import options
    from gapless.cli.view import view

    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command in (demo, generate, view, doctor):
        app.command()(reported(command))
    # Its options are vLLM's, which are known once vLLM is imported.
    app.command(context_settings=CONTEXT, add_help_option=False)(reported(serve))
    app.add_typer(build_cache_app(), name="cache")
    app.callback()(options)
    return app


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    try:
        build_app()()
    except KeyboardInterrupt:  # before a command began, while its modules were imported
        print_interrupted()
        sys.exit(INTERRUPTED)
