"""Choosing the next token of every row on the device, each row in its own way.

All of it has fixed shapes and reads what it needs from device buffers, so that it can be captured
in a graph with the step, and the host never sees a logit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gapless.pipeline.sampling import Sampling
from gapless.pipeline.uniform import uniform

_PARAMETERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


class Sampler:
    """The rows' sampling parameters, penalties and random numbers, on the device.

    Args:
        rows: the batch size.
        vocabulary: logits per row.
        device: where the logits are.
    """

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        # float32 [rows, parameters]; one copy sets a row.
        self._parameters = torch.zeros(rows, len(_PARAMETERS), device=device)
        columns = self._parameters.unbind(1)
        self._of = {name: columns[i].view(rows, 1) for i, name in enumerate(_PARAMETERS)}
        self._top_k = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._seeds = torch.zeros(rows, dtype=torch.int64, device=device)
        self._drawn = torch.zeros(rows, dtype=torch.int64, device=device)
        self._in_prompt = torch.zeros(rows, vocabulary, dtype=torch.bool, device=device)
        self._counts = torch.zeros(rows, vocabulary, dtype=torch.int32, device=device)
        self._ranks = torch.arange(vocabulary, device=device)
        for row in range(rows):
            self._set(row, Sampling(seed=0))

    def join(self, row: int, prompt: Sequence[int], sampling: Sampling) -> None:
        """Begin a sequence in a row; in stream order, without waiting."""
        self._set(row, sampling)
        self._drawn[row].zero_()
        self._counts[row].zero_()
        self._in_prompt[row].zero_()
        ids = torch.tensor(sorted(set(prompt)), dtype=torch.int64).to(self._counts.device)
        self._in_prompt[row].index_fill_(0, ids, True)

    def sample(self, logits: torch.Tensor, tokens: torch.Tensor) -> None:
        """Choose every row's next token.

        Args:
            logits: ``[rows, vocabulary]``, any float dtype; computed with in float32.
            tokens: int64 ``[rows]``, written.
        """
        self._choose(logits, tokens, slice(None))

    def sample_row(self, row: int, logits: torch.Tensor, token: torch.Tensor) -> None:
        """Choose one row's next token: ``logits`` ``[1, vocabulary]``, ``token`` ``[1]``."""
        self._choose(logits, token, slice(row, row + 1))

    def _set(self, row: int, sampling: Sampling) -> None:
        seed = sampling.seed
        if seed is None:
            seed = int(torch.randint(2**63 - 1, ()).item())
        values = torch.tensor([float(getattr(sampling, name)) for name in _PARAMETERS])
        self._parameters[row].copy_(values)
        self._top_k[row].fill_(min(sampling.top_k or self._vocabulary, self._vocabulary))
        self._seeds[row].fill_(seed)

    def _choose(self, logits: torch.Tensor, tokens: torch.Tensor, rows: slice) -> None:
        counts, drawn = self._counts[rows], self._drawn[rows]
        logits = self._penalised(logits.float(), rows)
        temperature = self._of["temperature"][rows]
        is_greedy = temperature == 0
        scaled = logits / torch.where(is_greedy, 1.0, temperature)
        # Stable, so that equal logits come in the order of their ids on every device.
        ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
        weights = self._kept(ordered, rows)
        totals = weights.cumsum(dim=-1, dtype=torch.float64)
        at = uniform(self._seeds[rows], drawn).unsqueeze(1) * totals[:, -1:]
        place = (totals <= at).sum(dim=-1, keepdim=True).clamp_(max=self._vocabulary - 1)
        place = torch.where(is_greedy, 0, place)  # the first one is the likeliest
        chosen = ids.gather(1, place)
        tokens.copy_(chosen.view(-1))
        counts.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=torch.int32))
        drawn.add_(1)

    def _penalised(self, logits: torch.Tensor, rows: slice) -> torch.Tensor:
        counts = self._counts[rows]
        in_answer = counts > 0
        repetition = self._of["repetition_penalty"][rows]
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(in_answer | self._in_prompt[rows], repeated, logits)
        logits = logits - self._of["frequency_penalty"][rows] * counts
        return logits - self._of["presence_penalty"][rows] * in_answer

    def _kept(self, ordered: torch.Tensor, rows: slice) -> torch.Tensor:
        """Probabilities in descending order, those that are filtered out zero; not normalised."""
        ordered = ordered.masked_fill(self._ranks >= self._top_k[rows], float("-inf"))
        weights = ordered.softmax(dim=-1)
        before = weights.cumsum(dim=-1, dtype=torch.float64) - weights
        is_kept = before < self._of["top_p"][rows]
        is_kept &= weights >= self._of["min_p"][rows] * weights[:, :1]
        return torch.where(is_kept, weights, 0.0)
