"""Recording a whole process because an environment variable asks for it."""

import atexit
import os
from contextlib import ExitStack

from gapless.errors import UsageError

VARIABLE = "GAPLESS_RECORD"


def start_if_asked() -> bool:
    """Record until the process exits, into the folder that ``GAPLESS_RECORD`` names, if it does.

    To be called once the device is registered: what runs last at exit is registered first, and the
    recording has to be written while the device is still there.

    Raises:
        UsageError: the folder cannot be made.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return False
    from gapless.profile.recording import record

    stack = ExitStack()
    try:
        stack.enter_context(record(folder))
    except OSError as error:
        raise UsageError(
            f"{VARIABLE}={folder}: the folder cannot be made ({error.strerror}); "
            "name one that you may write to, or unset it"
        ) from error
    atexit.register(stack.close)
    return True
