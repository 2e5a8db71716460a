"""How many cores the device has while a model is served."""

from __future__ import annotations

import functools
import os

from gapless.device import cores

VARIABLE = "GAPLESS_DEVICE_CORES"
# Up to here a core that is kept free for the host is a large part of the machine, and the host of a
# server that double-buffers needs a part of one; benchmarks/serving.py shows both counts.
_SHARED_UP_TO = 4


# Up to so many tokens a kernel other than a matrix product is over before a team has come together.
_SMALL = 8
_SMALL_ATTENTION = 2


def small_kernels_team(tokens: int) -> int:
    """How many threads a decode step of so many tokens computes with, but for matrix products.

    A step has hundreds of small kernels, and each ends with its slowest thread, which beside a busy
    host is one that was interrupted.
    """
    return 1 if tokens <= _SMALL else _device_cores()


def attention_team(tokens: int) -> int:
    """The same of attention, which takes longer than the other small kernels."""
    return 1 if tokens <= _SMALL_ATTENTION else _device_cores()


@functools.cache
def _device_cores() -> int:
    return max(1, len(cores.plan().device_cores))


def share_cores() -> None:
    """Let the device use all cores of a small machine, the host's as well, unless somebody chose.

    To be called before the device is used for the first time, which is when it takes its cores.
    """
    cores = len(os.sched_getaffinity(0))
    if cores <= _SHARED_UP_TO:
        os.environ.setdefault(VARIABLE, str(cores))
