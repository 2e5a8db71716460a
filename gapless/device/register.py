"""Make PyTorch know the device: its name, its module ``torch.gapless``, its methods."""

import os

import torch


def register() -> None:
    """Register the device ``gapless`` with PyTorch; a second call does nothing."""
    if hasattr(torch, "gapless"):
        return
    from torch.utils.backend_registration import generate_methods_for_privateuse1_backend

    from gapless import device
    from gapless.device import distributed, process_end, sharing, vendor_drivers
    from gapless.device.after_import import after_import

    torch._register_device_module("gapless", device)  # type: ignore[no-untyped-call]
    generate_methods_for_privateuse1_backend(for_storage=True)
    distributed.register()
    sharing.refuse()
    after_import("torch._dynamo.device_interface", _register_with_dynamo)
    process_end.register()
    vendor_drivers.announce_wanted()
    if os.environ.get("GAPLESS_INSPECT_ENABLE") or os.environ.get("GAPLESS_RECORD"):
        from gapless.profile.environment import start_if_asked

        start_if_asked()


def _register_with_dynamo() -> None:
    from gapless.device import dynamo_interface

    dynamo_interface.register()
