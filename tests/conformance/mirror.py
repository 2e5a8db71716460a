"""The same inputs on two devices: equal values in equal layouts, sharing nothing."""

from collections.abc import Callable
from typing import Any

import torch


def mirrored(tensor: torch.Tensor, device: str, shift: int = 0) -> torch.Tensor:
    """A leaf on ``device`` with the values, strides, offset and conjugate bits of a CPU tensor.

    The whole storage is copied, so that overlapping and strided layouts come out the same. Tensors
    that have no strides (sparse, quantised) go through ``Tensor.to``. The values begin ``shift``
    elements later than the memory does.
    """
    requires_grad = tensor.requires_grad
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        return tensor.clone().to(device).requires_grad_(requires_grad)
    conjugate, negative = tensor.is_conj(), tensor.is_neg()
    plain = tensor
    if conjugate:
        plain = plain.conj()
    if negative:
        plain = torch._neg_view(plain)
    items = plain.untyped_storage().nbytes() // plain.element_size()
    flat = torch.empty(0, dtype=plain.dtype).set_(plain.untyped_storage(), 0, (items,), (1,))
    moved = flat.to(device, copy=True)
    if shift:
        moved = torch.cat([moved.new_zeros(shift), moved])
    copy = moved.as_strided(plain.size(), plain.stride(), plain.storage_offset() + shift)
    if negative:
        copy = torch._neg_view(copy)
    if conjugate:
        copy = copy.conj()
    return copy.detach().requires_grad_(requires_grad)


def mapped(tree: Any, on_tensor: Callable[[torch.Tensor], Any], device: str) -> Any:
    """``tree`` with its tensors mapped, and ``device`` in the place of the device ``cpu``."""
    if isinstance(tree, torch.Tensor):
        return on_tensor(tree)
    if isinstance(tree, torch.device):
        return torch.device(device)
    if isinstance(tree, str):
        return device if tree == "cpu" else tree
    if isinstance(tree, dict):
        return {key: mapped(value, on_tensor, device) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(value, on_tensor, device) for value in tree))
    if isinstance(tree, list):
        return [mapped(value, on_tensor, device) for value in tree]
    if isinstance(tree, tuple):  # PyTorch's own named results among them
        return tuple(mapped(value, on_tensor, device) for value in tree)
    return tree


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Every tensor in ``tree``, in a fixed order."""
    found: list[torch.Tensor] = []

    def take(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    mapped(tree, take, "cpu")
    return found
