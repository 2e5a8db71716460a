"""A KV cache of fixed shape whose write positions live on the device.

transformers' ``StaticCache`` keeps one length for the whole batch, so rows of different lengths
need left padding, and it computes its positions again in every layer. Here each row has its own
length, and one slot vector, computed once per step, serves all layers with one ``index_copy_``
per tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from gapless.errors import UsageError
from gapless.pipeline.memory_budget import require_memory


@dataclass(frozen=True)
class KVShape:
    """The shape of a KV cache: one key and one value line per layer, row, position and head."""

    layers: int
    rows: int
    context: int
    heads: int
    head_dim: int

    @classmethod
    def of(cls, config: Any, rows: int, context: int) -> KVShape:
        """Read layers, heads and head size from a transformers config."""
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None)
        head_dim = head_dim or config.hidden_size // config.num_attention_heads
        return cls(config.num_hidden_layers, rows, context, heads, head_dim)

    def size_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of all keys and values together."""
        line = self.heads * self.head_dim * dtype.itemsize
        return 2 * self.layers * self.rows * self.context * line


class RowKVLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values: ``[rows, context, heads, head_dim]`` each.

    The context dimension comes before the heads, so that one token's keys are one contiguous line
    and are written with a single copy.
    """

    is_compileable = False  # transformers would otherwise build a mask where none is needed
    is_sliding = False
    supports_early_init = False

    def __init__(
        self, shape: KVShape, slots: torch.Tensor, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        # Zeros, not empty: a masked slot still meets a weight of 0, and 0 * NaN is NaN.
        dims = (shape.rows, shape.context, shape.heads, shape.head_dim)
        self._key_store = torch.zeros(dims, dtype=dtype, device=device)
        self._value_store = torch.zeros(dims, dtype=dtype, device=device)
        # Views are made once: each would otherwise be dispatched in every layer of every step.
        lines = (shape.rows * shape.context, shape.heads * shape.head_dim)
        self._key_lines = self._key_store.view(lines)
        self._value_lines = self._value_store.view(lines)
        self.keys = self._key_store.transpose(1, 2)
        self.values = self._value_store.transpose(1, 2)
        self.is_initialized = True
        self._shape = shape
        self._slots = slots
        self.prefill_row: int | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the storage is made in ``__init__``."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new keys and values, ``[rows, heads, tokens, head_dim]``, and return those to use.

        While a row is prefilled these are the new ones alone, which are the row's whole context.
        While decoding they are the whole cache, which the step's mask restricts.
        """
        row = self.prefill_row
        if row is None:
            lines = (self._shape.rows, -1)
            self._key_lines.index_copy_(0, self._slots, key_states.reshape(lines))
            self._value_lines.index_copy_(0, self._slots, value_states.reshape(lines))
            return self.keys, self.values
        self._require_known_layout(key_states, value_states)
        tokens = key_states.shape[2]
        self._key_store[row, :tokens].copy_(key_states[0].transpose(0, 1))
        self._value_store[row, :tokens].copy_(value_states[0].transpose(0, 1))
        return key_states, value_states

    def _require_known_layout(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        expected = (self._shape.heads, self._shape.head_dim)
        for name, states in (("keys", key_states), ("values", value_states)):
            found = (states.shape[1], states.shape[3])
            if found != expected:
                raise UsageError(
                    f"the model's {name} have (heads, head size) {found}, its config says "
                    f"{expected}: this attention is not supported; use a model with plain "
                    "multi-head or grouped-query attention"
                )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that a prefill attends to; decoding brings its own mask."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Always 0: the rows' lengths differ, and live on the device."""
        return 0

    def get_max_length(self) -> int:
        """The number of positions per row."""
        return self._shape.context


class RowKVCache(Cache):  # type: ignore[misc]
    """The KV cache of a whole model, with one length per row.

    Args:
        shape: layers, rows, context, heads and head size.
        slots: int64 ``[rows]`` on the device; the line that each row writes in this step, which is
            ``row * context + position``. The step updates it in place.
        dtype: of keys and values.
        device: where they live.

    Raises:
        torch.OutOfMemoryError: the cache does not fit; the message says what is wanted and free.
    """

    layers: list[RowKVLayer]

    def __init__(
        self, shape: KVShape, slots: torch.Tensor, dtype: torch.dtype, device: torch.device
    ) -> None:
        require_memory(
            shape.size_bytes(dtype),
            device,
            what=f"the KV cache for {shape.rows} x {shape.context} positions",
            remedy="use a smaller context (--context) or batch",
        )
        layers = [RowKVLayer(shape, slots, dtype, device) for _ in range(shape.layers)]
        super().__init__(layers=layers)
        self.shape = shape

    def begin_prefill(self, row: int) -> None:
        """Until ``end_prefill``, updates write positions 0, 1, ... of this row."""
        for layer in self.layers:
            layer.prefill_row = row

    def end_prefill(self) -> None:
        """From here on, updates write one position per row, at ``slots``."""
        for layer in self.layers:
            layer.prefill_row = None
