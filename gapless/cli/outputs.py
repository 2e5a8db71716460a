"""Files that a command is to write: looked at before the work whose result they hold."""

from __future__ import annotations

import os
from pathlib import Path


def require_writable(path: Path, option: str) -> None:
    """Say so now if ``path`` could not be written at the end; nothing is created.

    Raises:
        UsageError: it is a folder, its folder is not there, or it may not be written.
    """
    from gapless.errors import UsageError

    folder = path.parent
    if path.is_dir():
        why = "that is a folder; name a file in it"
    elif not folder.is_dir():
        why = f"the folder {folder} is not there; make it or name another file"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        why = "it may not be written; name a file that you may write"
    else:
        return
    raise UsageError(f"{option} {path}: {why}")
