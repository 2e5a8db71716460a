"""The device as torch.compile sees it; imported only once torch.compile is, which takes seconds."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch.types import Device

from gapless import _C
from gapless import device as gapless_device


class GaplessInterface(DeviceInterface):
    """What torch.compile asks of a device; there are no Triton kernels for this one."""

    device = gapless_device.device
    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        """The same for compilation in worker processes, which do not use the device."""

        @staticmethod
        def set_device(device: int) -> None:
            """Nothing: a worker compiles for any device."""

        @staticmethod
        def current_device() -> int:
            """The first device."""
            return 0

        @staticmethod
        def get_device_properties(device: Device = None) -> Any:
            """What the driver says of the device."""
            return gapless_device.get_device_properties(device)

    @staticmethod
    def current_device() -> int:
        """Index of the calling thread's current device."""
        return gapless_device.current_device()

    @staticmethod
    def set_device(device: Device) -> None:
        """Make a device current."""
        gapless_device.set_device(device)

    @staticmethod
    def exchange_device(device: int) -> int:
        """Make a device current and return the one that was; a negative index changes nothing."""
        before = gapless_device.current_device()
        if device >= 0:
            gapless_device.set_device(device)
        return before

    maybe_exchange_device = exchange_device

    @staticmethod
    def device_count() -> int:
        """How many devices there are."""
        return gapless_device.device_count()

    @staticmethod
    def is_available() -> bool:
        """Whether the device can be used in this process."""
        return gapless_device.is_available()

    @staticmethod
    def stream(stream: torch.Stream) -> AbstractContextManager[Any]:
        """Context manager that makes a stream current."""
        return gapless_device.stream(stream)

    @staticmethod
    def current_stream() -> torch.Stream:
        """The calling thread's current stream."""
        return gapless_device.current_stream()

    @staticmethod
    def set_stream(stream: torch.Stream) -> None:
        """Make a stream current."""
        gapless_device.set_stream(stream)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        gapless_device.set_stream(
            torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """The current stream's index among its device's."""
        return gapless_device.current_stream(device_idx).stream_id

    @staticmethod
    def synchronize(device: Device = None) -> None:
        """Wait for all streams of a device."""
        gapless_device.synchronize(device)

    @staticmethod
    def get_compute_capability(device: Device = None) -> str:
        """Nothing: the kernels are the CPU's."""
        return ""

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Always: where the processor cannot, kernels convert."""
        return True

    @staticmethod
    def memory_allocated(device: Device = None) -> int:
        """Bytes in tensors now."""
        return gapless_device.memory_allocated(device)


def register() -> None:
    """Tell torch.compile of the device."""
    register_interface_for_device("gapless", GaplessInterface)
    # Without starting the driver: as many names as it may have devices.
    for index in range(_C.device_count() if _C.is_initialized() else 1):
        register_interface_for_device(f"gapless:{index}", GaplessInterface)
