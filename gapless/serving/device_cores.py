"""How many cores the device has while a model is served."""

from __future__ import annotations

import os

from gapless.device import cores

VARIABLE = "GAPLESS_DEVICE_CORES"
# Up to here a core that is kept free for the host is a large part of the machine, and the host of a
# server that double-buffers needs a part of one; benchmarks/serving.py shows both counts.
_SHARED_UP_TO = 4


# A batch of so few tokens computes in a step's time little more with the host's core than without.
_FEW_TOKENS = 2


def team_for(tokens: int) -> int:
    """How many threads a decode step of so many tokens computes with, in a graph of its own.

    Its products wait for memory, which one core less reads almost as fast, and each of its many
    small kernels ends with the thread that the host has interrupted.
    """
    plan = cores.plan()
    size = len(plan.device_cores)
    shared = set(plan.device_cores) >= set(plan.host_cores)
    return size - 1 if tokens <= _FEW_TOKENS and shared and size > 1 else size


def share_cores() -> None:
    """Let the device use all cores of a small machine, the host's as well, unless somebody chose.

    To be called before the device is used for the first time, which is when it takes its cores.
    """
    cores = len(os.sched_getaffinity(0))
    if cores <= _SHARED_UP_TO:
        os.environ.setdefault(VARIABLE, str(cores))
