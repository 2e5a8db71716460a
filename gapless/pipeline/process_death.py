"""Processes that do not outlive the one that made them, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # of prctl


def die_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent dies; at once where that has happened.

    Args:
        parent: the parent's process id, as it was when this process was made.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
