"""Tensors on their way to the device and back, without the host waiting for either.

A copy that the host does not wait for needs pinned memory at the host's end, and that memory must
not be written before the copy has run. So every input is first copied into pinned memory that is
the step's own, and every result gets pinned memory of its own, which is never used again while
somebody holds the result. torch's allocator of pinned memory keeps what is freed and hands it out
again once the device has finished with it.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless.pipeline.tensor_tree import map_tensors, refuse_hidden_tensors


class HostTransfer:
    """Copies of trees of tensors between the host and one device, on the current stream.

    Args:
        device: the device, with its index; or the CPU, where both ends are the same memory.
        inputs_stay: send pinned inputs from where they are, since nobody writes to them before
            the step's result was read; saves the copy on the host.
    """

    def __init__(self, device: torch.device, inputs_stay: bool = False) -> None:
        self._device = device
        self._on_cpu = device.type == "cpu"
        self._inputs_stay = inputs_stay

    def stage(self, tree: Any) -> Any:
        """Copy the host's tensors to where the device can take them from at any later time.

        Raises:
            ValueError: a tensor is on another device.
            TypeError: a tensor is sparse, or of another layout that has no plain memory.
        """
        return map_tensors(self._stage, tree)

    def send(self, tree: Any) -> Any:
        """Submit the copies of a staged tree to the device; the staged one must be kept."""
        return tree if self._on_cpu else map_tensors(self._send, tree)

    def fetch(self, tree: Any) -> Any:
        """Submit the copies of a step's output to the host, into memory of the result's own.

        Raises:
            ValueError: a tensor is on another device, or in pinned host memory, to which a copy
                may still be on its way.
            TypeError: a tensor has no plain memory, or is hidden in an object.
        """
        return map_tensors(self._fetch, tree, refuse_hidden_tensors)

    def _stage(self, tensor: torch.Tensor) -> torch.Tensor:
        _require_strided(tensor, "input")
        if tensor.device == self._device and not self._on_cpu:
            return tensor
        if tensor.device.type != "cpu":
            raise ValueError(
                f"an input is on {tensor.device} and the pipeline runs on {self._device}; pass it "
                f"on the CPU or on {self._device}"
            )
        if self._inputs_stay and (self._on_cpu or tensor.is_pinned()):
            return tensor
        plain = _without_gradient(tensor)
        staged = torch.empty_like(plain, pin_memory=not self._on_cpu).copy_(plain)
        return staged.requires_grad_() if tensor.requires_grad else staged

    def _send(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == self._device:
            return tensor
        sent = _without_gradient(tensor).to(self._device, non_blocking=True)
        return sent.requires_grad_() if tensor.requires_grad else sent

    def _fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        _require_strided(tensor, "result")
        plain = _without_gradient(tensor)
        if tensor.device == self._device and not self._on_cpu:
            buffer = torch.empty_like(plain, device="cpu", pin_memory=True)
            return buffer.copy_(plain, non_blocking=True)
        if tensor.device.type != "cpu":
            raise ValueError(
                f"the step returned a tensor on {tensor.device} and the pipeline runs on "
                f"{self._device}; move it there before it is returned"
            )
        if not self._on_cpu and tensor.is_pinned():
            raise ValueError(
                "the step returned a tensor in pinned host memory, and a copy may still be on its "
                f"way there; return the tensor on {self._device}, the pipeline copies it"
            )
        return plain.clone()  # a later step may write to the same memory


def _without_gradient(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _require_strided(tensor: torch.Tensor, what: str) -> None:
    if tensor.layout != torch.strided:
        raise TypeError(f"the {what} has a tensor of layout {tensor.layout}; use to_dense() first")
