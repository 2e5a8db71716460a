"""Linear layers whose weights lie as the kernels read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)

from gapless.serving.linear_weights import LinearWeight, best_weight

logger = init_logger(__name__)


@dataclass(frozen=True)
class PackedLayers:
    """What packing did."""

    layers: int
    left: tuple[str, ...]  # why a layer was left as it is, one entry for each


class _OnPackedWeight:
    def __init__(self, packed: LinearWeight) -> None:
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


def pack_linears(
    model: nn.Module, form: Callable[[torch.Tensor], LinearWeight] = best_weight
) -> PackedLayers:
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
            packed = form(weight.detach())
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
    return PackedLayers(layers, tuple(left))
