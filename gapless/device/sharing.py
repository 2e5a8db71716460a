"""Sharing memory among processes is refused, clearly.

PyTorch takes every accelerator's memory to be shared already, as CUDA's is by way of handles.
Without this, ``share_memory_`` would do nothing and sending a tensor fail in a thread of its own.
"""

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

_share_memory = torch.UntypedStorage.share_memory_


def _refusal(what: str) -> RuntimeError:
    return RuntimeError(
        f"{what}: memory of the device gapless belongs to one process; share a copy on the host "
        "instead (.cpu()), and move it to the device in the other process"
    )


def _share_memory_(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
    if storage.device.type == "gapless":
        raise _refusal("share_memory_")
    return _share_memory(storage, *args, **kwargs)


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if tensor.device.type == "gapless":
        raise _refusal("sending a tensor to another process")
    return reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]


def refuse() -> None:
    """Make sharing a tensor of the device an error that names the remedy."""
    torch.UntypedStorage.share_memory_ = _share_memory_  # type: ignore[method-assign]
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _reduce_tensor)
