"""Recording a whole process because an environment variable asks for it."""

import atexit
import os
from contextlib import ExitStack

VARIABLE = "GAPLESS_RECORD"


def start_if_asked() -> bool:
    """Record until the process exits, into the folder that ``GAPLESS_RECORD`` names, if it does.

    To be called once the device is registered: what runs last at exit is registered first, and the
    recording has to be written while the device is still there.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return False
    from gapless.profile.recording import record

    stack = ExitStack()
    stack.enter_context(record(folder))
    atexit.register(stack.close)
    return True
