"""``torch.gapless``: streams, events, graphs, memory, random numbers and errors of the device.

Most of it is PyTorch's own device-generic interface under the names that code written for
``torch.cuda`` expects; prefer ``torch.accelerator`` in new code.
"""

import sys

import torch

from gapless import _C
from gapless.device import cores, departures, recorder
from gapless.device.fallback_order import CallableModule, first_available
from gapless.device.graphs import Graph
from gapless.device.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from gapless.device.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from gapless.device.selection import (
    DeviceProperties,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    is_available,
    set_device,
)
from gapless.device.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
    synchronize,
)
from gapless.device.team import team_limit

sys.modules[__name__].__class__ = CallableModule


def init() -> None:
    """Start the driver now rather than at first use.

    Raises:
        RuntimeError: it refuses to start; the text names the setting, its limit and the remedy.
    """
    _C.init()


_lazy_init = init


def is_initialized() -> bool:
    """Whether the driver was started in this process."""
    return _C.is_initialized() and not _C.is_in_bad_fork()


def __getattr__(name: str) -> bool:
    # PyTorch asks this of a device before it keeps its random numbers' state, as activation
    # checkpoints do for the recomputation to draw the same numbers.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_in_bad_fork() -> bool:
    return _C.is_in_bad_fork()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that ``torch.autocast("gapless")`` accepts."""
    return [torch.bfloat16, torch.float16]


__all__ = [
    "DeviceProperties",
    "Event",
    "Graph",
    "Stream",
    "cores",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "departures",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "first_available",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "recorder",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "team_limit",
]
