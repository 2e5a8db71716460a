"""What happens at a call whose program is not there yet."""

from __future__ import annotations

import os
from enum import Enum

from gapless.errors import UsageError

MODE_VARIABLE = "GAPLESS_COMPILE"


class CompileMode(Enum):
    """How a missing program is dealt with.

    Attributes:
        BACKGROUND: compiled by another thread, and the graph runs operator by operator until then.
        WAIT: the call waits for it, so that every run has the program's bits.
        NEVER: an error that names the shapes; what the artifact cache holds is loaded.
    """

    BACKGROUND = "background"
    WAIT = "wait"
    NEVER = "never"


def compile_mode() -> CompileMode:
    """``GAPLESS_COMPILE``, or ``background``.

    Raises:
        UsageError: it has another value.
    """
    text = os.environ.get(MODE_VARIABLE, "") or CompileMode.BACKGROUND.value
    try:
        return CompileMode(text)
    except ValueError:
        values = ", ".join(mode.value for mode in CompileMode)
        raise UsageError(f"{MODE_VARIABLE}={text}: must be one of {values}") from None
