"""Why the engine did not start, told by its process to the one that started it."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from gapless.cli.errors import DEBUG_VARIABLE, one_line

# The logger that vLLM's engine tells its failure to start, in its own process.
_LOGGER = "vllm.v1.engine.core"
_LIMIT = 4096


class FailureReport:
    """A pipe that a forked engine inherits; it carries the line that says why it did not start.

    While it is installed, the engine's traceback is left out, unless ``GAPLESS_DEBUG=1``.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._owner = os.getpid()

    def install(self) -> None:
        """Listen; engines that are forked from here on report."""
        logging.getLogger(_LOGGER).addFilter(self._filter)

    def read(self) -> str | None:
        """What an engine reported; None where none did."""
        try:
            text = os.read(self._reader, _LIMIT).decode(errors="replace")
        except BlockingIOError:
            return None
        return text.splitlines()[0] if text else None

    def _filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if os.getpid() == self._owner or not isinstance(error, Exception):
            return True
        os.write(self._writer, one_line(error).encode()[:_LIMIT])
        if os.environ.get(DEBUG_VARIABLE) == "1":
            return True
        # multiprocessing would print the traceback once more as the process ends.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
        return False
