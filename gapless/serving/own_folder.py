"""A temporary folder that goes with its process; what a killed one leaves, with the next one."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def own_folder(prefix: str) -> Path:
    """A new folder, named by this process, removed when it ends; a fork's child leaves it alone.

    What a killed process has left under the same prefix is removed first.
    """
    _sweep(Path(tempfile.gettempdir()), prefix)
    owner = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{owner}-"))

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def lives(process: int) -> bool:
    """Whether there is a process with this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True


def _sweep(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        owner = folder.name.removeprefix(prefix).partition("-")[0]
        with suppress(OSError):
            if owner.isdigit() and not lives(int(owner)) and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
