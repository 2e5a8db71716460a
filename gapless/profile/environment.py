"""Recording a whole process because environment variables ask for it.

``GAPLESS_INSPECT_ENABLE=1`` records, into the folder ``GAPLESS_INSPECT_OUTPUT_DIR``;
``GAPLESS_RECORD=DIR`` is short for both.
"""

import os
import sys
from pathlib import Path

from gapless.errors import UsageError

ENABLE = "GAPLESS_INSPECT_ENABLE"
OUTPUT_DIR = "GAPLESS_INSPECT_OUTPUT_DIR"
RECORD = "GAPLESS_RECORD"
DEFAULT_FOLDER = "gapless-recording"
_WRONG_USAGE = 2


def start_if_asked() -> bool:
    """Record until the process exits, if the environment says so.

    What cannot be done as it was asked for ends the process, with one line and code 2: it is
    better to learn so now than when the recording is looked for. This runs inside of
    ``import torch``, which wraps an error into pages of text.
    """
    try:
        folder = wanted_folder()
        if folder is None:
            return False
        start(folder)
    except UsageError as error:
        print(f"gapless: error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(_WRONG_USAGE) from None
    return True


def wanted_folder() -> Path | None:
    """The folder to record into, as the environment names it; None where nothing is asked for.

    Raises:
        UsageError: a variable has no meaning, or two contradict each other.
    """
    enabled, named, short = (os.environ.get(name) for name in (ENABLE, OUTPUT_DIR, RECORD))
    if enabled not in (None, "", "0", "1"):
        raise UsageError(f"{ENABLE}={enabled} is neither 1 nor 0; set it to one of them")
    if short and enabled == "0":
        raise UsageError(f"{RECORD}={short} and {ENABLE}=0 contradict each other; unset one")
    if short and named and Path(short).absolute() != Path(named).absolute():
        raise UsageError(f"{RECORD}={short} and {OUTPUT_DIR}={named} differ; unset one")
    if short:
        return Path(short)
    return Path(named or DEFAULT_FOLDER) if enabled == "1" else None


def start(folder: Path) -> None:
    """Record into this folder, and let child processes do so wherever they start.

    Raises:
        UsageError: the folder cannot be made or written to.
    """
    from gapless.profile.recording import begin

    variable = RECORD if os.environ.get(RECORD) else OUTPUT_DIR
    try:
        begin(folder)
    except OSError as error:
        raise UsageError(
            f"{variable}={folder}: the folder cannot be made or written to ({error.strerror}); "
            "name one that you may write to, or unset it"
        ) from None
    os.environ[variable] = str(folder.absolute())
