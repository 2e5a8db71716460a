"""What a process is called in recordings."""

import multiprocessing
import os
import sys
from pathlib import Path

_MAIN = "MainProcess"
_given: str | None = None


def name_process(name: str) -> None:
    """Say what recordings shall call this process, and children that are forked from here on.

    By default it is its program, with its name in multiprocessing if it is a child, and its rank
    if the variable ``RANK`` tells one.
    """
    global _given
    _given = name


def process_name() -> str:
    """What recordings call this process."""
    if _given is not None:
        return _given
    parts = [Path(sys.argv[0] or "python").name]
    child = multiprocessing.current_process().name
    if child != _MAIN:
        parts.append(child)
    rank = os.environ.get("RANK", "")
    if rank.isdecimal():
        parts.append(f"rank {rank}")
    return " ".join(parts)
