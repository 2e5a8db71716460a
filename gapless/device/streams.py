"""Streams and events of the device, under the names that ``torch.cuda`` uses."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.types import Device

from gapless.device.memory import _index


def Stream(device: Device = None, priority: int = 0) -> torch.Stream:
    """A stream of the device with a native thread of its own."""
    return torch.Stream(torch.device("gapless", _index(device)), priority=priority)


def Event(enable_timing: bool = False, blocking: bool = False) -> torch.Event:
    """An event of the device; with ``enable_timing`` it can tell elapsed milliseconds."""
    return torch.Event("gapless", enable_timing=enable_timing, blocking=blocking)


def current_stream(device: Device = None) -> torch.Stream:
    """The calling thread's current stream on a device."""
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream that a device's work goes to unless another one is current."""
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=_DEVICE_TYPE)


_DEVICE_TYPE = 20  # c10::DeviceType::PrivateUse1


def set_stream(stream: torch.Stream) -> None:
    """Make a stream current for the calling thread."""
    torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream | None) -> AbstractContextManager[Any]:
    """Context manager that makes a stream current; ``None`` changes nothing."""
    return nullcontext() if stream is None else stream


def synchronize(device: Device = None) -> None:
    """Wait for all streams of a device, and raise the first failure among their work.

    Raises:
        torch.AcceleratorError: work failed; the text names the operation and its place.
    """
    torch.accelerator.synchronize(_index(device))
