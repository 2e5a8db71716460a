"""The choice of a greedy sampler."""

import torch


def greedy_argmax(logits: torch.Tensor) -> torch.Tensor:
    """The place of each row's largest number: int64 [rows], for logits [rows, numbers].

    Of equal numbers it is the first, and a NaN is the largest, as for ``torch.argmax``, which takes
    what is not in float32 or not contiguous.
    """
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        return logits.argmax(-1)
    out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    torch.ops.gapless.greedy_argmax(out, logits)
    return out
