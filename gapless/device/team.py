"""How many of the device's threads the kernels of a part of the work compute with."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from gapless import _C

_limits: ContextVar[int] = ContextVar("team limits", default=0)


@contextmanager
def team_limit(most: int, device: int | None = None) -> Iterator[None]:
    """Let what is submitted inside, to the current stream, compute with ``most`` threads at most.

    For small kernels a team of all cores may cost more than it brings, above all beside a busy
    host: every kernel ends with its slowest thread. Inside a capture it becomes part of the graph.
    It changes nothing for drivers whose kernels do not run on the host's cores.

    Args:
        most: how many; more than the device's cores are not used.
        device: its index; by default the current one.

    Raises:
        ValueError: ``most`` is not positive.
    """
    if most < 1:
        raise ValueError(f"most must be at least 1, got {most}; a kernel needs a thread")
    outer = _limits.get()
    with _limit(min(most, outer) if outer else most, device):
        yield


@contextmanager
def whole_team(device: int | None = None) -> Iterator[None]:
    """Take all of the device's threads inside a ``team_limit``, for a kernel that is worth them."""
    if not _limits.get():
        yield
        return
    with _limit(0, device):
        yield


@contextmanager
def _limit(most: int, device: int | None) -> Iterator[None]:
    index = torch.accelerator.current_device_index() if device is None else device
    outer = _limits.get()
    _C.limit_team(index, most)
    token = _limits.set(most)
    try:
        yield
    finally:
        _limits.reset(token)
        _C.limit_team(index, outer)
