"""Why the server did not start, in one line: also where it is the engine's process that knows."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from gapless.cli.errors import DEBUG_VARIABLE, one_line
from gapless.errors import GaplessError, UsageError

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

    def read(self) -> GaplessError | None:
        """What an engine reported; None where none did."""
        try:
            text = os.read(self._reader, _LIMIT).decode(errors="replace")
        except BlockingIOError:
            return None
        kind, _, line = text.partition(" ")
        return UsageError(line) if kind == UsageError.__name__ else GaplessError(line)

    def _filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if os.getpid() == self._owner or not isinstance(error, Exception):
            return True
        known = explained(error)
        line = f"{type(known).__name__} {known}" if known else f"GaplessError {one_line(error)}"
        os.write(self._writer, line.encode()[:_LIMIT])
        if os.environ.get(DEBUG_VARIABLE) == "1":
            return True
        # multiprocessing would print the traceback once more as the process ends.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
        return False


def explained(error: BaseException) -> GaplessError | None:
    """The error as one line where it says what was wrong with the request; None for any other.

    vLLM refuses values with ``ValueError``, and those of its options through pydantic.
    """
    if isinstance(error, GaplessError):
        return error
    if not isinstance(error, ValueError):
        return None
    details = getattr(error, "errors", None)
    if callable(details):
        return UsageError("; ".join(_detail(found) for found in details()))
    return UsageError(" ".join(str(error).split()))


def _detail(found: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in found["loc"])
    text = " ".join(str(found["msg"]).removeprefix("Value error, ").split())
    return f"{where}: {text}" if where else text
