"""A temporary folder that goes with its process; what a killed one leaves, with the next one."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_own: list[tuple[int, Path]] = []


def own_folder(prefix: str) -> Path:
    """A new folder, named by this process, removed when it ends; a fork's child leaves it alone.

    What a killed process has left under the same prefix is removed first.
    """
    _sweep(Path(tempfile.gettempdir()), prefix)
    owner = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{owner}-"))

    _own.append((owner, folder))
    return folder


@atexit.register
def remove_own_folders() -> None:
    """Remove this process's folders now: for an end that leaves out what is to be done at exit."""
    for owner, folder in _own:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)


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
