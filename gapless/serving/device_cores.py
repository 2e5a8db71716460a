"""How many cores the device has while a model is served."""

from __future__ import annotations

import os

VARIABLE = "GAPLESS_DEVICE_CORES"
# Up to here a core that is kept free for the host is a large part of the machine, and the host of a
# server that double-buffers needs a part of one; benchmarks/serving.py shows both counts.
_SHARED_UP_TO = 4


def share_cores() -> None:
    """Let the device use all cores of a small machine, the host's as well, unless somebody chose.

    To be called before the device is used for the first time, which is when it takes its cores.
    """
    cores = len(os.sched_getaffinity(0))
    if cores <= _SHARED_UP_TO:
        os.environ.setdefault(VARIABLE, str(cores))
