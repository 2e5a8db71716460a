"""The first device of several that is there: ``gapless.device("cuda", "gapless", "cpu")``."""

from __future__ import annotations

import sys
from types import ModuleType

import torch


def first_available(*names: str) -> torch.device:
    """The first of these devices that is there; which one it is, and why, is told on stderr.

    Args:
        names: such as ``"cuda"``, ``"neuron"``, ``"gapless:1"`` or ``"cpu"``; ``cpu`` always is
            there.

    Raises:
        ValueError: no name was given.
        RuntimeError: none of them is there; the text says why not, for each.
    """
    if not names:
        raise ValueError('no device was named; name some, such as "cuda", "gapless", "cpu"')
    missing: list[str] = []
    for name in names:
        trouble = _trouble_with(name)
        if trouble is None:
            why = f" ({'; '.join(missing)})" if missing else ""
            print(f"gapless: device {name}{why}", file=sys.stderr)
            return torch.device(name)
        missing.append(f"{name}: {trouble}")
    raise RuntimeError(f"none of the devices is there ({'; '.join(missing)}); cpu always is")


def _trouble_with(name: str) -> str | None:
    try:
        device = torch.device(name)
    except RuntimeError:
        return "torch does not know it"
    if device.type == "cpu":
        return None
    try:
        module = torch.get_device_module(device.type)
    except RuntimeError:
        return "torch was built without it"
    if not module.is_available():
        return "not available"
    count = module.device_count()
    if count <= (device.index or 0):
        return f"there are {count}"
    return None


class CallableModule(ModuleType):
    """Lets ``gapless.device`` be called, which is a module as well."""

    def __call__(self, *names: str) -> torch.device:
        """See ``first_available``."""
        return first_available(*names)
