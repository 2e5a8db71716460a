"""Warnings of upstream's about this package's own choices, which say nothing to a user."""

from __future__ import annotations

import logging

# The logger that gives it, and how its text begins.
KNOWN = (
    # The scheduler is upstream's own; its subclass only marks what it does for recordings.
    ("vllm.config.scheduler", "Using custom scheduler class %s."),
    # Nothing is compiled: a decode step is a replayed graph.
    ("vllm.config.vllm", "Inductor compilation was disabled by user settings"),
)


def leave_out() -> None:
    """Leave them out from here on."""
    for name, beginning in KNOWN:
        logging.getLogger(name).addFilter(_Without(beginning))


class _Without(logging.Filter):
    def __init__(self, beginning: str) -> None:
        super().__init__()
        self._beginning = beginning

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith(self._beginning):
            return True
        # A scheduler of the user's is worth the warning.
        return bool(record.args) and "gapless.serving" not in str(record.args)
