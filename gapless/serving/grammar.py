"""Masks logits by what a grammar allows, on the device."""

from __future__ import annotations

from typing import Any

import torch

_BITS = 32
_shifts: dict[torch.device, torch.Tensor] = {}


def apply_token_bitmask_inplace(
    logits: torch.Tensor, bitmask: torch.Tensor, *, indices: Any = None
) -> None:
    """Set the logits of forbidden tokens to minus infinity.

    Args:
        logits: [rows, tokens], written.
        bitmask: int32 [rows, tokens / 32 rounded up], least significant bit first; a set bit allows
            its token. Rows without a grammar have all bits set.
        indices: the rows with a grammar; not needed, as the others' bits are set.
    """
    device = logits.device
    if device not in _shifts:
        _shifts[device] = torch.arange(_BITS, dtype=torch.int32).to(device)
    tokens = min(logits.shape[-1], bitmask.shape[-1] * _BITS)
    bits = (bitmask.unsqueeze(-1) >> _shifts[device]).bitwise_and_(1)
    forbidden = bits.view(bitmask.shape[0], -1)[:, :tokens] == 0
    logits[:, :tokens].masked_fill_(forbidden, float("-inf"))


class GrammarLibrary:
    """xgrammar, but for the one function that would compile a kernel in the middle of a request."""

    apply_token_bitmask_inplace = staticmethod(apply_token_bitmask_inplace)

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)
