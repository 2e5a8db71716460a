"""How much memory is left on a device, asked before a large allocation rather than after it.

A host that overcommits grants any allocation and kills the process later, when the pages are
touched; asking first turns that into an error that can be read.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

_GIB = 1 << 30
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED = Path("/sys/fs/cgroup/memory.current")
_MEMINFO = Path("/proc/meminfo")


def free_bytes(device: torch.device) -> int | None:
    """Free bytes on the device; None where neither the device nor the system tells."""
    if device.type == "cpu":
        return _free_host_bytes()
    try:
        free, _total = torch.accelerator.get_memory_info(device)
    except (RuntimeError, NotImplementedError):
        return None
    return int(free)


def require_memory(wanted_bytes: int, device: torch.device, what: str, remedy: str) -> None:
    """Check that an allocation can succeed.

    Raises:
        torch.OutOfMemoryError: more is wanted than is free; one line with both and the remedy.
    """
    free = free_bytes(device)
    if free is not None and wanted_bytes > free:
        raise torch.OutOfMemoryError(
            f"out of memory on {device}: {what} needs {wanted_bytes / _GIB:.2f} GiB and "
            f"{free / _GIB:.2f} GiB are free; {remedy}"
        )


def _free_host_bytes() -> int | None:
    candidates: list[int] = []
    with contextlib.suppress(OSError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                candidates.append(int(line.split()[1]) * 1024)
    # A container's limit is what counts where it is lower than the machine's memory; where there
    # is none the file says "max" or is missing.
    with contextlib.suppress(OSError, ValueError):
        candidates.append(int(_CGROUP_LIMIT.read_text()) - int(_CGROUP_USED.read_text()))
    return min(candidates, default=None)
