"""How many of the device's threads the kernels of a part of the work compute with."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from gapless import _C

_MOST = 1 << 16
_is_limited: ContextVar[bool] = ContextVar("team is limited", default=False)


@contextmanager
def team_limit(most: int, device: torch.types.Device = None) -> Iterator[None]:
    """Let what is submitted inside, to the current stream, compute with ``most`` threads at most.

    For small kernels a team of all cores may cost more than it brings, above all beside a busy
    host: every kernel ends with its slowest thread. Limits inside limits count as well. Inside a
    capture a limit becomes part of the graph; around one it is not, and what has no limit of its
    own takes that of its replay. It belongs to one stream: others are not limited. It changes
    nothing for drivers whose kernels do not run on the host's cores.

    Args:
        most: how many; more than the device's cores are not used.
        device: by default the current one.

    Raises:
        TypeError: ``most`` is no whole number.
        ValueError: ``most`` is not positive.
        RuntimeError: at the end, a capture has begun or ended inside.
    """
    if not isinstance(most, int) or isinstance(most, bool):
        raise TypeError(f"most must be a whole number of threads, got {most!r}")
    if most < 1:
        raise ValueError(f"most must be at least 1, got {most}; a kernel needs a thread")
    with _limit(min(most, _MOST), device):
        yield


@contextmanager
def whole_team(device: torch.types.Device = None) -> Iterator[None]:
    """Take all of the device's threads inside a ``team_limit``, for a kernel that is worth them.

    Outside of one, and of a capture, it does nothing.
    """
    if not _is_limited.get() and not torch.accelerator.current_stream(device).is_capturing():
        yield
        return
    with _limit(0, device):
        yield


@contextmanager
def _limit(most: int, device: torch.types.Device) -> Iterator[None]:
    limit = _C.TeamLimit(_index(device), most)
    token = _is_limited.set(True)
    try:
        yield
    finally:
        _is_limited.reset(token)
        limit.end()


def _index(device: torch.types.Device) -> int:
    current = torch.accelerator.current_device_index()
    if device is None:
        return current
    index = device if isinstance(device, int) else torch.device(device).index
    return current if index is None else index
