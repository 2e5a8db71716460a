"""Which device to run on, from what was asked for and what is there."""

from __future__ import annotations

import torch

from gapless.errors import UsageError


def choose_device(name: str) -> torch.device:
    """The device of this name: ``auto``, ``cpu``, or an accelerator's such as ``gapless``.

    ``auto`` takes the accelerator that torch has, and the CPU where it has none.

    Raises:
        UsageError: the name is malformed, there is no such device, or a setting of it is bad.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return torch.device("cpu") if accelerator is None else _started(accelerator)
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
    _started(device)
    count = torch.accelerator.device_count()
    if device.index is not None and device.index >= count:
        raise UsageError(f"there is no device {name!r}: {device.type} has {count}, from 0")
    return device


def _started(device: torch.device) -> torch.device:
    """The device, after it was asked something: a bad setting of it is the user's to put right."""
    try:
        torch.accelerator.device_count()
    except RuntimeError as error:
        raise UsageError(str(error).splitlines()[0]) from error
    return device
