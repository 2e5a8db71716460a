"""Linear layers whose weights lie as the kernels read them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)

from gapless.device.team import whole_team
from gapless.serving.linear_weights import LinearWeight, best_weight

logger = init_logger(__name__)


@dataclass(frozen=True)
class PackedLayers:
    """What packing did."""

    layers: int
    bytes: int  # outside the device's allocator
    left: tuple[str, ...]  # why a layer was left as it is, one entry for each


class _OnPackedWeight:
    def __init__(self, packed: LinearWeight) -> None:
        super().__init__()
        self.packed = packed

    def apply(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The layer's product."""
        with whole_team():
            return self.packed.multiply(x, bias)


class PackedLinearMethod(_OnPackedWeight, UnquantizedLinearMethod):
    """A linear layer on a packed weight."""


class PackedHeadMethod(_OnPackedWeight, UnquantizedEmbeddingMethod):
    """The model's head on a packed weight; the weight itself stays, for the embedding."""


def _is_packable(module: nn.Module) -> bool:
    method = type(getattr(module, "quant_method", None))
    if isinstance(module, ParallelLMHead):
        return method is UnquantizedEmbeddingMethod
    return isinstance(module, LinearBase) and method is UnquantizedLinearMethod


def pack_linears(
    model: nn.Module, form: Callable[[torch.Tensor], LinearWeight] = best_weight
) -> PackedLayers:
    """Pack the weights of a model's linear layers and of its head, one after the other.

    A packed layer's own weight is freed, so that memory grows by one layer for each core at most.
    """
    wanted = [(name, module) for name, module in model.named_modules() if _is_packable(module)]

    def pack(module: nn.Module) -> int | str:
        assert isinstance(module.weight, torch.Tensor)
        weight = module.weight.detach()
        try:
            packed = form(weight)
        except RuntimeError as error:
            return str(error).splitlines()[0]
        if isinstance(module, ParallelLMHead):
            module.quant_method = PackedHeadMethod(packed)
        else:
            module.quant_method = PackedLinearMethod(packed)
            module.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)
        return packed.bytes

    # The kernels' own packing uses one core.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        results = list(threads.map(pack, [module for _, module in wanted]))
    left = tuple(
        f"{name}: {result}"
        for (name, _), result in zip(wanted, results, strict=True)
        if isinstance(result, str)
    )
    torch.accelerator.empty_cache()
    if left:
        logger.warning(
            "gapless: %d linear layers are not packed and slower (%s)", len(left), left[0]
        )
    packed_bytes = sum(result for result in results if isinstance(result, int))
    return PackedLayers(len(wanted) - len(left), packed_bytes, left)
