"""Layers of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.router import fused_topk_router
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

_ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


@UnquantizedFusedMoEMethod.register_oot(name="UnquantizedFusedMoEMethod")
class GaplessFusedMoEMethod(UnquantizedFusedMoEMethod):
    """A layer's experts in one piece of work, each on the tokens that chose it."""

    @property
    def is_monolithic(self) -> bool:
        """No: the router is the model's own."""
        return False

    def process_weights_after_loading(self, layer: Any) -> None:
        """Check that the layer can be computed.

        Raises:
            NotImplementedError: its activation is not among those of the kernel.
        """
        super().process_weights_after_loading(layer)
        activation = _name(layer.activation)
        if activation not in _ACTIVATIONS:
            raise NotImplementedError(
                f"gapless has no experts with the activation {activation}, only "
                f"{', '.join(_ACTIVATIONS)}"
            )
        if layer.expert_map is not None:
            raise NotImplementedError("gapless has no expert parallelism; leave it out")

    def forward_oot(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        """The weighted sum of the chosen experts; x is [tokens, hidden]."""
        out = torch.empty_like(x)
        torch.ops.gapless.fused_experts(
            out,
            x,
            layer.w13_weight,
            layer.w2_weight,
            getattr(layer, "w13_bias", None),
            getattr(layer, "w2_bias", None),
            topk_weights,
            topk_ids,
            _name(layer.activation),
            layer.apply_router_weight_on_input,
        )
        return out


def _scores(function: Callable[..., torch.Tensor]) -> Callable[..., tuple[torch.Tensor, ...]]:
    def choose(
        topk_weights: torch.Tensor,
        topk_indices: torch.Tensor,
        token_expert_indices: torch.Tensor,
        gating_output: torch.Tensor,
        renormalize: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        scores = function(gating_output.float())
        weights, experts = scores.topk(topk_weights.shape[-1], dim=-1)
        if renormalize:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return topk_weights.copy_(weights), topk_indices.copy_(experts)

    return choose


# A shim like those of shims.py, for models with experts only: upstream calls kernels of CUDA there
# (model_executor/layers/fused_moe/router/fused_topk_router.py).
topk_softmax = _scores(lambda logits: logits.softmax(dim=-1))
topk_sigmoid = _scores(torch.sigmoid)
fused_topk_router.vllm_topk_softmax = topk_softmax
fused_topk_router.vllm_topk_sigmoid = topk_sigmoid


def _name(activation: Any) -> str:
    return str(getattr(activation, "value", activation))
