"""Which device to run on, from what was asked for and what is there."""

from __future__ import annotations

import torch

from gapless.errors import UsageError


def choose_device(name: str) -> torch.device:
    """The device of this name: ``auto``, ``cpu``, or an accelerator's such as ``gapless``.

    ``auto`` takes the accelerator that torch has, and the CPU where it has none.

    Raises:
        UsageError: the name is malformed, or there is no such device.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return accelerator or torch.device("cpu")
    there = "cpu" if accelerator is None else f"cpu and {accelerator.type}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(
            f"there is no device {name!r}, only {there}; run gapless doctor"
        ) from error
    if device.type == "cpu":
        return device
    if accelerator is None or device.type != accelerator.type:
        raise UsageError(f"there is no device {name!r}, only {there}; run gapless doctor")
    count = torch.accelerator.device_count()
    if device.index is not None and device.index >= count:
        raise UsageError(f"there is no device {name!r}: {device.type} has {count}, from 0")
    return device
