"""Linear layers whose weights lie as oneDNN's kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from vllm import _custom_ops
from vllm.logger import init_logger
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)

logger = init_logger(__name__)
_CACHED_SHAPES = 32
_MOST_INT8 = 127


@dataclass(frozen=True)
class PackedWeights:
    """What packing did."""

    layers: int
    left: tuple[str, ...]  # why a layer was left as it is, one entry for each


class PackedWeight:
    """A weight of shape [outputs, inputs] in the layout of oneDNN's matrix product."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.outputs, self.inputs = weight.shape
        self.handler = _custom_ops.create_onednn_mm(weight.cpu().t(), _CACHED_SHAPES)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """``x @ weight.T + bias`` for x of shape [..., inputs]."""
        out = torch.empty((*x.shape[:-1], self.outputs), dtype=x.dtype, device=x.device)
        torch.ops._C.onednn_mm(
            out.view(-1, self.outputs),
            x.reshape(-1, self.inputs),
            bias,
            self.handler.handler_tensor,
        )
        return out


class Int8Weight:
    """A weight of shape [outputs, inputs] in 8 bits, with one scale for each output.

    Symmetric, rounded to nearest: half the bytes of bfloat16, which is what a small batch waits
    for. PyTorch's kernel multiplies it with bfloat16.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self.outputs, self.inputs = weight.shape
        exact = weight.float()
        scales = (exact.abs().amax(1) / _MOST_INT8).clamp(min=torch.finfo(torch.float32).tiny)
        self._rounded = (exact / scales[:, None]).round().to(torch.int8)
        self._scales = scales.to(torch.bfloat16)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """``x @ weight.T + bias`` for x of shape [..., inputs]."""
        rows = x.reshape(-1, self.inputs).to(torch.bfloat16)
        out = torch._weight_int8pack_mm(rows, self._rounded, self._scales).to(x.dtype)
        out = out.view(*x.shape[:-1], self.outputs)
        return out if bias is None else out + bias


class _OnPackedWeight:
    def __init__(self, packed: PackedWeight | Int8Weight) -> None:
        super().__init__()
        self.packed = packed

    def apply(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The layer's product."""
        return self.packed.multiply(x, bias)


class PackedLinearMethod(_OnPackedWeight, UnquantizedLinearMethod):
    """A linear layer on a packed weight."""


class PackedHeadMethod(_OnPackedWeight, UnquantizedEmbeddingMethod):
    """The model's head on a packed weight; the weight itself stays, for the embedding."""


OPTION = "linear_weights"
_WEIGHTS: dict[object, type[PackedWeight | Int8Weight]] = {
    None: PackedWeight,
    "int8": Int8Weight,
}


def weights_wanted(additional_config: object) -> type[PackedWeight | Int8Weight]:
    """How vLLM's ``--additional-config`` asks for the weights of linear layers.

    Raises:
        ValueError: in a way that is none of those that there are.
    """
    wanted = additional_config.get(OPTION) if isinstance(additional_config, dict) else None
    if wanted not in _WEIGHTS:
        raise ValueError(
            f"--additional-config.{OPTION} {wanted}: the weights of linear layers may be "
            "int8, or as they are without the option"
        )
    return _WEIGHTS[wanted]


def pack_linears(
    model: nn.Module, kind: type[PackedWeight | Int8Weight] = PackedWeight
) -> PackedWeights:
    """Pack the weights of a model's linear layers and of its head, one after the other.

    A packed layer's own weight is freed, so that memory grows by one layer at a time at most.
    """
    layers = 0
    left: list[str] = []
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        is_head = isinstance(module, ParallelLMHead) and type(method) is UnquantizedEmbeddingMethod
        is_linear = isinstance(module, LinearBase) and type(method) is UnquantizedLinearMethod
        if not (is_head or is_linear):
            continue
        weight = module.weight
        try:
            packed = kind(weight.detach())
        except RuntimeError as error:
            left.append(f"{name}: {str(error).splitlines()[0]}")
            continue
        layers += 1
        if is_head:
            module.quant_method = PackedHeadMethod(packed)
        else:
            module.quant_method = PackedLinearMethod(packed)
            module.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)
    torch.accelerator.empty_cache()
    if left:
        logger.warning(
            "gapless: %d linear layers are not packed and slower (%s)", len(left), left[0]
        )
    return PackedWeights(layers, tuple(left))
