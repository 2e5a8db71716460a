"""A decode step whose tokens are chosen on the host, which makes the loop sequential.

The next step needs the token, the token needs the host, and the host needs the logits: no step can
be submitted before the one before it has ended.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from gapless.errors import UsageError
from gapless.pipeline.decode_step import DecodeStep
from gapless.pipeline.token_ring import TokenRing

HostSampler = Callable[[torch.Tensor], torch.Tensor]
REASON = "sampling is on the host: the next step needs a token that the device does not have"


class HostSampledStep:
    """Submits the model, waits for its logits, and sends back the tokens that the sampler chose.

    Args:
        step: the step.
        sampler: takes float32 logits ``[rows, vocabulary]`` on the host, those of idle rows
            included, and returns int64 tokens ``[rows]``.
    """

    def __init__(self, step: DecodeStep, sampler: HostSampler) -> None:
        self._step = step
        self._sampler = sampler
        self.device = step.device
        self.ring = TokenRing(step.tokens, 2)

    @property
    def room(self) -> int:
        """Steps that fit into the context after the last prefill."""
        return self._step.room

    def submit(self, samples: bool = False) -> None:
        """Run one step to its end, sampling included.

        Raises:
            UsageError: the sampler returned something else than a token per row.
        """
        self.ring.require_slot()
        with torch.inference_mode():
            logits = self._step.submit_model()[:, -1].float().cpu()
            self._write(self._step.tokens, logits)
        self.ring.push()

    def choose_first(self, row: int, logits: torch.Tensor, token: torch.Tensor) -> None:
        """Choose a joining row's first token: ``logits`` ``[1, vocabulary]`` on the device."""
        del row
        self._write(token, logits.float().cpu())

    def _write(self, tokens: torch.Tensor, logits: torch.Tensor) -> None:
        chosen = self._sampler(logits)
        rows, vocabulary = logits.shape
        is_tensor = isinstance(chosen, torch.Tensor)
        if not is_tensor or chosen.numel() != rows or chosen.dtype.is_floating_point:
            what = f"{chosen.dtype} {tuple(chosen.shape)}" if is_tensor else type(chosen).__name__
            raise UsageError(
                f"the sampler returned {what} for {rows} rows; return one token per row, as an "
                f"int64 tensor of shape ({rows},)"
            )
        chosen = chosen.reshape(tokens.shape).to(torch.int64)
        if bool(((chosen < 0) | (chosen >= vocabulary)).any()):
            raise UsageError(
                f"the sampler returned tokens {chosen.tolist()}; they must be from 0 to "
                f"{vocabulary - 1}"
            )
        tokens.copy_(chosen)
