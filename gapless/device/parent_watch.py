"""An engine's process ends when the one that started it is gone, however that ended."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time

# Long enough to finish a step and to write a recording.
_GRACE_S = 10.0
_started_in: int | None = None


def end_with_parent() -> None:
    """Watch, in a process that ``multiprocessing`` started; does nothing in any other.

    SIGTERM comes first, which vLLM's engine takes as a request to end, and then the end.
    """
    global _started_in
    parent = multiprocessing.parent_process()
    if parent is None or _started_in == os.getpid():
        return
    _started_in = os.getpid()
    arguments = (parent.sentinel,)
    threading.Thread(target=_watch, args=arguments, name="parent watch", daemon=True).start()


def _watch(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(1)
