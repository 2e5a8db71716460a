"""How many cores the device has while a model is served."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

from gapless.device.team import team_limit

VARIABLE = "GAPLESS_DEVICE_CORES"
# Up to here a core that is kept free for the host is a large part of the machine, and the host of a
# server that double-buffers needs a part of one; benchmarks/serving.py shows both counts.
_SHARED_UP_TO = 4

# Up to so many tokens a kernel other than a matrix product or attention is over before a team has
# come together.
_SMALL = 32


def small_kernels(tokens: int) -> AbstractContextManager[None]:
    """What a step of so many tokens is submitted in: small kernels have one thread.

    A step has hundreds of small kernels, and each ends with its slowest thread, which beside a busy
    host is one that was interrupted.
    """
    return team_limit(1) if tokens <= _SMALL else nullcontext()


def share_cores() -> None:
    """Let the device use all cores of a small machine, the host's as well, unless somebody chose.

    To be called before the device is used for the first time, which is when it takes its cores.
    """
    cores = len(os.sched_getaffinity(0))
    if cores <= _SHARED_UP_TO:
        os.environ.setdefault(VARIABLE, str(cores))
