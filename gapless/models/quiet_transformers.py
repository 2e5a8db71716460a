"""transformers without its chatter: our progress is one line, not three bars and warnings."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and warnings inside the block; errors still raise.

    Some of its bars cannot be switched off, so standard error is discarded as well. A console that
    was given its stream before keeps writing to it.
    """
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
            yield
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
