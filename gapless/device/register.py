"""Make PyTorch know the device: its name, its module ``torch.gapless``, its methods."""

import atexit
import os
import sys

import torch

_EXIT_TIMEOUT_MS = 10_000


def register() -> None:
    """Register the device ``gapless`` with PyTorch; a second call does nothing."""
    if hasattr(torch, "gapless"):
        return
    from torch.utils.backend_registration import generate_methods_for_privateuse1_backend

    from gapless import device
    from gapless.device import distributed, sharing, vendor_drivers
    from gapless.device.after_import import after_import

    torch._register_device_module("gapless", device)  # type: ignore[no-untyped-call]
    generate_methods_for_privateuse1_backend(for_storage=True)
    distributed.register()
    sharing.refuse()
    after_import("torch._dynamo.device_interface", _register_with_dynamo)
    # Before the interpreter goes: a stream's thread must not outlive what its work refers to.
    atexit.register(_shut_down)
    vendor_drivers.announce_wanted()
    if os.environ.get("GAPLESS_RECORD"):
        from gapless.profile.environment import start_if_asked

        start_if_asked()


def _register_with_dynamo() -> None:
    from gapless.device import dynamo_interface

    dynamo_interface.register()


def _shut_down() -> None:
    from gapless import _C

    ended = _C.shutdown(_EXIT_TIMEOUT_MS)
    for text in _C.take_unreported_failures():
        print(f"gapless: nobody waited for this error: {text}", file=sys.stderr, flush=True)
    if not ended:
        print(
            f"gapless: work on the device did not end within {_EXIT_TIMEOUT_MS // 1000} s of the "
            "process's end; leaving without it",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)  # what its thread uses is about to be destroyed
