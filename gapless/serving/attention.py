"""Paged attention: vLLM's CPU kernels, planned on the device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

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
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

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
class Part:
    """Some of a step's sequences, which lie side by side; tensors are on the device."""

    tokens: slice  # of the step
    query_start_loc: torch.Tensor  # int32 [sequences + 1], from 0 on
    seq_lens: torch.Tensor  # int32 [sequences]
    block_table: torch.Tensor  # int32 [sequences, blocks]
    slot_mapping: torch.Tensor  # int64 [tokens]


@dataclass
class GaplessAttentionMetadata:
    """What a step's attention layers share."""

    plan: int  # slot of gapless::plan_attention, for the prompts
    causal: bool
    # Sequences with one new token each, whose kernel needs no plan, and all others after them. A
    # sequence has the same kernel whatever others are in its step, so that its tokens do not depend
    # on them.
    decodes: Part | None
    prompts: Part | None
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
        if (
            _C.has_avx2()
            and self.isa == "vec"
            and self.kv_cache_dtype == "auto"
            and all(layer.impl.has_decode_kernel for layer in layers.values())
        ):
            self.reorder_batch_threshold = 1  # sequences with one new token come first

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
        if self.is_encoder_only_attention:
            bounds = tuple(common.query_start_loc_cpu[: common.num_reqs + 1].tolist())
            return GaplessAttentionMetadata(self.plan, causal, None, None, bounds)
        sequences = tokens = 0
        if self.reorder_batch_threshold is not None and causal:
            sequences, _, tokens, _ = split_decodes_and_prefills(common)
        decodes = prompts = None
        if tokens:
            decodes = self._part(common, slice(0, sequences), slice(0, tokens))
        if tokens < common.num_actual_tokens:
            rest = slice(tokens, common.num_actual_tokens)
            prompts = self._part(common, slice(sequences, None), rest)
            self._plan(prompts, causal)
        return GaplessAttentionMetadata(self.plan, causal, decodes, prompts)

    @staticmethod
    def _part(common: CommonAttentionMetadata, sequences: slice, tokens: slice) -> Part:
        last = None if sequences.stop is None else sequences.stop + 1
        starts = common.query_start_loc[sequences.start : last]
        return Part(
            tokens,
            starts - tokens.start if tokens.start else starts,
            common.seq_lens[sequences],
            common.block_table_tensor[sequences],
            common.slot_mapping[tokens],
        )

    def _plan(self, prompts: Part, causal: bool) -> None:
        with whole_team():
            torch.ops.gapless.plan_attention(
                *(self.plan, prompts.seq_lens, prompts.query_start_loc),
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
        stores = self.kv_sharing_target_layer_name is None and key is not None

        def operands(part: Part) -> tuple[Any, ...]:
            of = part.tokens
            keys, values, slots = (
                (key[of], value[of], part.slot_mapping) if stores else (None, None, None)
            )
            lengths = (part.query_start_loc, part.seq_lens, part.block_table)
            return query[of], keys, values, kv_cache, output[of], *lengths, slots, self.scale

        if attn_metadata.decodes is not None:
            with whole_team():
                torch.ops.gapless.decode_attention(
                    *operands(attn_metadata.decodes), self.sliding_window, self.logits_soft_cap
                )
        if attn_metadata.prompts is not None:
            torch.ops.gapless.paged_attention(
                attn_metadata.plan,
                *operands(attn_metadata.prompts),
                *(attn_metadata.causal, self.alibi_slopes, self.sliding_window),
                *(self.logits_soft_cap, self.sinks, layer.isa),
                *(layer._k_scale_float, layer._v_scale_float, self.kv_cache_dtype),
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
