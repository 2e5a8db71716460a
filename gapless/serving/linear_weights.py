"""The forms in which the weight of a linear layer may lie, each with the kernel that reads it.

A step of few sequences waits for the weights to be read from memory, so that their size is its
speed. ``float16`` takes half of float32's bytes and computes in float32 all the same. It is chosen
where it changes nothing that float32 could tell: checkpoints hold bfloat16 as a rule, and of those
numbers all but the tiniest are float16 numbers as well, if need be times a power of two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from gapless import _C
from gapless.kernels.half_weight import HalfWeight, float16_exponent

OPTION = "linear_weights"
_CACHED_SHAPES = 32
_MOST_INT8 = 127


class LinearWeight(Protocol):
    """A weight of shape [outputs, inputs], in so many bytes outside the device's allocator."""

    bytes: int

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """``x @ weight.T + bias`` for x of shape [..., inputs]; the result has x's dtype."""


class PackedWeight:
    """In its own dtype, in the layout of oneDNN's matrix product."""

    def __init__(self, weight: torch.Tensor) -> None:
        from vllm import _custom_ops

        self.outputs, self.inputs = weight.shape
        self.bytes = weight.nbytes
        self.handler = _custom_ops.create_onednn_mm(weight.cpu().t(), _CACHED_SHAPES)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """See ``LinearWeight``."""
        out = torch.empty((*x.shape[:-1], self.outputs), dtype=x.dtype, device=x.device)
        torch.ops._C.onednn_mm(
            out.view(-1, self.outputs),
            x.reshape(-1, self.inputs),
            bias,
            self.handler.handler_tensor,
        )
        return out


class Int8Weight:
    """In 8 bits with one scale for each output: symmetric, rounded to nearest.

    PyTorch's kernel multiplies it with bfloat16.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self.outputs, self.inputs = weight.shape
        self.bytes = 0  # tensors of the device
        exact = weight.float()
        scales = (exact.abs().amax(1) / _MOST_INT8).clamp(min=torch.finfo(torch.float32).tiny)
        self._rounded = (exact / scales[:, None]).round().to(torch.int8)
        self._scales = scales.to(torch.bfloat16)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """See ``LinearWeight``."""
        rows = x.reshape(-1, self.inputs).to(torch.bfloat16)
        out = torch._weight_int8pack_mm(rows, self._rounded, self._scales).to(x.dtype)
        out = out.view(*x.shape[:-1], self.outputs)
        return out if bias is None else out + bias


def best_weight(weight: torch.Tensor) -> LinearWeight:
    """The form in which steps are shortest and that gives the products of the weight's own dtype.

    Raises:
        RuntimeError: no kernel takes it.
    """
    if weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return PackedWeight(weight)
    if _C.has_avx2():
        host = weight.detach().cpu()
        exponent = float16_exponent(host)
        if exponent is not None:
            return HalfWeight(host, exponent, weight.device)
    return PackedWeight(weight)


FORMS: dict[object, Callable[[torch.Tensor], LinearWeight]] = {
    None: best_weight,
    "plain": PackedWeight,
    "int8": Int8Weight,
}


def form_wanted(additional_config: object) -> Callable[[torch.Tensor], LinearWeight]:
    """The form that vLLM's ``--additional-config`` asks for.

    Raises:
        ValueError: it is none of those that there are.
    """
    options = additional_config if isinstance(additional_config, dict) else {}
    unknown = ", ".join(sorted(str(key) for key in options.keys() - {OPTION}))
    if unknown:
        raise ValueError(
            f"--additional-config.{unknown}: gapless knows no such option; {OPTION} is the only one"
        )
    wanted = options.get(OPTION)
    if wanted not in FORMS:
        raise ValueError(
            f"--additional-config.{OPTION} {wanted}: it may be plain, in the dtype of the model, "
            "or int8; by default float16 where that changes nothing, else plain"
        )
    return FORMS[wanted]
