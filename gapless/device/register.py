"""Make PyTorch know the device: its name, its module ``torch.gapless``, its methods."""

import atexit

import torch

_EXIT_TIMEOUT_MS = 10_000


def register() -> None:
    """Register the device ``gapless`` with PyTorch; a second call does nothing."""
    if hasattr(torch, "gapless"):
        return
    from gapless import _C, device

    torch._register_device_module("gapless", device)
    torch.utils.generate_methods_for_privateuse1_backend()
    # Before the interpreter goes: a stream's thread must not outlive what its work refers to.
    atexit.register(_C.shutdown, _EXIT_TIMEOUT_MS)
