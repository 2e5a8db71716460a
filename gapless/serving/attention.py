"""Paged attention: vLLM's CPU kernels, planned on the device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from vllm import envs
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionLayer,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)

from gapless import _C
from gapless.device.team import whole_team


class GaplessAttentionBackend(CPUAttentionBackend):
    """The kernels and the cache's layout are those of vLLM's CPU backend."""

    forward_includes_kv_cache_update = True

    @staticmethod
    def get_name() -> str:
        """The name that vLLM reserves for a plugin's attention."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[GaplessAttention]:
        """What a layer calls."""
        return GaplessAttention

    @staticmethod
    def get_builder_cls() -> type[GaplessAttentionBuilder]:
        """What prepares a step."""
        return GaplessAttentionBuilder


@dataclass
class GaplessAttentionMetadata:
    """What a step's attention layers share; tensors are on the device."""

    num_actual_tokens: int
    plan: int | None  # slot of gapless::plan_attention; None: each sequence has one new token
    query_start_loc: torch.Tensor  # int32 [requests + 1]
    seq_lens: torch.Tensor  # int32 [requests]
    block_table: torch.Tensor  # int32 [requests, blocks]
    slot_mapping: torch.Tensor  # int64 [tokens]
    causal: bool
    # Where each sequence's tokens end, from 0 on; only for attention without a cache.
    bounds: tuple[int, ...] = ()


class GaplessAttentionBuilder(CPUAttentionMetadataBuilder):
    """Queues the plan of a step before the step."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = (
        AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    )

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.plan: int = torch.ops.gapless.new_attention_plan()
        layers = get_layers_from_vllm_config(self.vllm_config, Attention, self.layer_names)
        self.has_decode_kernel = (
            _C.has_avx2()
            and self.isa == "vec"
            and self.kv_cache_dtype == "auto"
            and all(layer.impl.has_decode_kernel for layer in layers.values())
        )

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> GaplessAttentionMetadata:
        """Queue the plan of this step and say where the layers find it."""
        common = common_attn_metadata
        if isinstance(common.causal, torch.Tensor):
            raise NotImplementedError(
                "gapless has no attention in which each request chooses whether it is causal"
            )
        causal = bool(common.causal) and not self.is_cross_attention
        bounds: tuple[int, ...] = ()
        decodes = self.has_decode_kernel and causal and common.max_query_len == 1
        if self.is_encoder_only_attention:
            bounds = tuple(common.query_start_loc_cpu[: common.num_reqs + 1].tolist())
        elif not decodes:
            self._plan(common, causal)
        return GaplessAttentionMetadata(
            num_actual_tokens=common.num_actual_tokens,
            plan=None if decodes else self.plan,
            query_start_loc=common.query_start_loc,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            causal=causal,
            bounds=bounds,
        )

    def _plan(self, common: CommonAttentionMetadata, causal: bool) -> None:
        with whole_team():
            torch.ops.gapless.plan_attention(
                *(self.plan, common.seq_lens, common.query_start_loc),
                *(self.num_heads, self.num_kv_heads, self.head_dim, self.dtype),
                *(causal, self.window_size, self.isa),
                *(envs.VLLM_CPU_ATTN_SPLIT_KV, self.kv_cache_dtype),
            )


class GaplessAttention(CPUAttentionBackendImpl):
    """One layer's attention: one piece of work, which stores keys and values and then attends."""

    @property
    def has_decode_kernel(self) -> bool:
        """Whether the kernel for single new tokens knows what this layer asks for."""
        return self.alibi_slopes is None and self.sinks is None

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: GaplessAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend.

        Args:
            layer: holds the scales of a quantised cache.
            query: [tokens, heads, head size]
            key: [tokens, kv heads, head size]
            value: as key.
            kv_cache: [blocks, kv heads, tokens of a block, 2 * head size]
            attn_metadata: of the step; None while vLLM measures memory.
            output: [tokens, heads, head size], written.
            output_scale: not supported.
            output_block_scale: not supported.

        Raises:
            NotImplementedError: a scale for the output was given.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("gapless has no attention with a quantised output")
        if attn_metadata is None:
            return output
        if self.attn_type in (AttentionType.ENCODER_ONLY, AttentionType.ENCODER):
            self._attend_to_all(query, key, value, attn_metadata.bounds, output)
            return output
        tokens = attn_metadata.num_actual_tokens
        stores = self.kv_sharing_target_layer_name is None and key is not None
        operands = (
            query[:tokens],
            key[:tokens] if stores else None,
            value[:tokens] if stores else None,
            kv_cache,
            output[:tokens],
            attn_metadata.query_start_loc,
            attn_metadata.seq_lens,
            attn_metadata.block_table,
            attn_metadata.slot_mapping[:tokens] if stores else None,
            self.scale,
        )
        if attn_metadata.plan is None:
            with whole_team():
                torch.ops.gapless.decode_attention(
                    *operands, self.sliding_window, self.logits_soft_cap
                )
            return output
        torch.ops.gapless.paged_attention(
            attn_metadata.plan,
            *operands,
            attn_metadata.causal,
            self.alibi_slopes,
            self.sliding_window,
            self.logits_soft_cap,
            self.sinks,
            layer.isa,
            layer._k_scale_float,
            layer._v_scale_float,
            self.kv_cache_dtype,
        )
        return output

    def _attend_to_all(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bounds: tuple[int, ...],
        output: torch.Tensor,
    ) -> None:
        # An encoder's: nothing is cached, and each sequence sees all of itself.
        if self.logits_soft_cap or self.alibi_slopes is not None or self.sinks is not None:
            raise NotImplementedError(
                "gapless has no attention of encoders with a soft cap, ALiBi or sinks"
            )
        for start, end in pairwise(bounds):
            q, k, v = (part[start:end].transpose(0, 1)[None] for part in (query, key, value))
            attended = torch.nn.functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=self._window_mask(end - start, query),
                scale=self.scale,
                enable_gqa=self.num_queries_per_kv > 1,
            )
            output[start:end] = attended[0].transpose(0, 1)

    def _window_mask(self, tokens: int, like: torch.Tensor) -> torch.Tensor | None:
        if self.sliding_window < 0 or tokens <= self.sliding_window:
            return None
        places = torch.arange(tokens)
        apart: torch.Tensor = (places[:, None] - places[None, :]).abs()
        mask: torch.Tensor = (apart < self.sliding_window).to(like.device)
        return mask
