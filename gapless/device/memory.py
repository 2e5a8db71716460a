"""Memory of the device, under the names that ``torch.cuda`` uses; all sizes in bytes."""

from typing import Any

import torch
from torch.types import Device


def _index(device: Device = None) -> int:
    if device is None:
        return torch.accelerator.current_device_index()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.accelerator.current_device_index() if index is None else index


def empty_cache() -> None:
    """Return cached memory that no tensor uses to the driver; waits for the device."""
    torch.accelerator.empty_cache()


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Counters of the caching allocator."""
    return dict(torch.accelerator.memory_stats(_index(device)))


def memory_allocated(device: Device = None) -> int:
    """Bytes in tensors now."""
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: Device = None) -> int:
    """Bytes in tensors at the peak."""
    return torch.accelerator.max_memory_allocated(_index(device))


def memory_reserved(device: Device = None) -> int:
    """Bytes taken from the driver now."""
    return torch.accelerator.memory_reserved(_index(device))


def max_memory_reserved(device: Device = None) -> int:
    """Bytes taken from the driver at the peak."""
    return torch.accelerator.max_memory_reserved(_index(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Let peaks start from what is allocated now."""
    torch.accelerator.reset_peak_memory_stats(_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Let running totals start from zero."""
    torch.accelerator.reset_accumulated_memory_stats(_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes, within ``GAPLESS_MEMORY_LIMIT`` where it is set."""
    free_bytes, total_bytes = torch.accelerator.get_memory_info(_index(device))
    return free_bytes, total_bytes
