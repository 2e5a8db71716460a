"""Which devices there are, and which one is current."""

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch.types import Device

from gapless import _C
from gapless.device.memory import _index


@dataclass(frozen=True)
class DeviceProperties:
    """What the driver says of a device."""

    driver: str
    name: str
    total_memory_bytes: int
    cores: int
    memory_is_host_addressable: bool

    @property
    def total_memory(self) -> int:
        """``total_memory_bytes`` under the name that ``torch.cuda`` uses."""
        return self.total_memory_bytes


def is_available() -> bool:
    """Whether the device can be used in this process.

    A bad setting does not make the device unavailable: it is an error at first use.
    """
    return not _C.is_in_bad_fork()


def device_count() -> int:
    """How many devices the driver has."""
    count: int = _C.device_count()
    return count


def current_device() -> int:
    """Index of the calling thread's current device."""
    return torch.accelerator.current_device_index()


def set_device(device: Device) -> None:
    """Make a device current for the calling thread."""
    torch.accelerator.set_device_index(_index(device))


def get_device_properties(device: Device = None) -> DeviceProperties:
    """What the driver says of a device.

    Raises:
        RuntimeError: there is no such device.
    """
    return DeviceProperties(**_C.properties(_index(device)))


def get_device_name(device: Device = None) -> str:
    """The driver's name for a device."""
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """Dtypes that the device supports."""
    return dict(torch.accelerator.get_device_capability(_index(device)))


class device:
    """Context manager that makes a device current; a negative index changes nothing."""

    def __init__(self, device: Device) -> None:
        self.idx = _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = current_device()
        if self.idx >= 0:
            set_device(self.idx)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.idx >= 0:
            set_device(self.prev_idx)


class device_of(device):
    """Context manager that makes a tensor's device current, where it is one of ours."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device.index if obj.device.type == "gapless" else -1)
