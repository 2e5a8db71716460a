"""LoRA's products, without a step in which the host looks at which token has which adapter."""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU


class GaplessPunicaWrapper(PunicaWrapperCPU):
    """Each adapter's product over all tokens, with the tokens of others set to zero.

    The adapters that a batch may have are few and their ranks small; in exchange every shape is
    known beforehand, so that the step can be captured.
    """

    def update_metadata(
        self, mapping: Any, lora_index_to_id: Any, max_loras: int, vocab_size: int, **_: Any
    ) -> None:
        """Tell the device each token's adapter; -1 is none."""
        self._update_base_metadata(mapping, lora_index_to_id, max_loras, vocab_size)
        self.is_prefill = False  # one way for all steps

    def _product(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        # weights: [adapters, 1, outputs, inputs], or without the 1
        weights = weights.squeeze(1) if weights.dim() == 4 else weights
        chosen = self._token_lora_indices[: x.shape[0]].unsqueeze(1)
        x = x.to(weights.dtype)
        total: torch.Tensor = (x * (chosen == 0)) @ weights[0].t()
        for adapter in range(1, weights.shape[0]):
            total += (x * (chosen == adapter)) @ weights[adapter].t()
        return total

    def _shrink_decode(
        self, y: torch.Tensor, x: torch.Tensor, w_t_all: torch.Tensor, scale: float
    ) -> None:
        product = self._product(x, w_t_all)
        y[:, : product.shape[1]] = scale * product

    def _expand_decode(
        self, y: torch.Tensor, x: torch.Tensor, w_t_all: torch.Tensor, add_inputs: bool
    ) -> None:
        width = min(w_t_all.shape[-2], y.shape[1])
        self._expand_slice_decode(y, x, w_t_all[..., :width, :], 0, width, add_inputs)

    def _expand_slice_decode(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        w_t_all: torch.Tensor,
        y_offset: int,
        y_slice_size: int,
        add_inputs: bool,
    ) -> None:
        product = self._product(x, w_t_all).to(y.dtype)
        part = y[:, y_offset : y_offset + y_slice_size]
        if add_inputs:
            part += product
        else:
            part.copy_(product)
