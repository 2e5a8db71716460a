"""How the next token of a sequence is chosen: what a request asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from gapless.errors import UsageError

MOST_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """What one sequence asks of the sampler. The default is greedy.

    The order is that of the processors in transformers: penalties, temperature, ``top_k``,
    ``top_p`` of what that left, ``min_p``.

    Attributes:
        temperature: divides the logits; 0 is greedy.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens up to this share of probability, at least one; in (0, 1].
        min_p: keep tokens at least this times as likely as the likeliest; in [0, 1].
        repetition_penalty: divides positive logits of tokens that the prompt or the answer has, and
            multiplies negative ones (Keskar et al., 2019); above 0, 1 changes nothing.
        presence_penalty: is subtracted from the logits of tokens that the answer has.
        frequency_penalty: is subtracted once for each time that the answer has the token.
        seed: of the sequence's own random numbers, which depend on it and on the position in the
            answer alone: whatever shares the batch, a seed gives the same answer. None takes one
            from torch's default generator. From 0 to 2**63 - 1.

    Raises:
        UsageError: a value is out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("top_k", "seed"):
                whole = isinstance(value, int) and not isinstance(value, bool)
                if not whole and not (field.name == "seed" and value is None):
                    raise UsageError(f"{field.name} is {value!r}; it must be a whole number")
            elif not isinstance(value, int | float) or not math.isfinite(value):
                raise UsageError(f"{field.name} is {value!r}; it must be a finite number")
        _require(self.temperature >= 0, "temperature", self.temperature, "0 (greedy) or more")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (all tokens) or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1 (all tokens)")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 (all tokens) to 1")
        _require(
            self.repetition_penalty > 0,
            "repetition_penalty",
            self.repetition_penalty,
            "above 0 (1 is none)",
        )
        if self.seed is not None:
            _require(0 <= self.seed <= MOST_SEED, "seed", self.seed, f"from 0 to {MOST_SEED}")

    @property
    def is_argmax(self) -> bool:
        """Whether the likeliest token as the model gives it is all that is asked for."""
        return (
            self.temperature == 0
            and self.repetition_penalty == 1
            and self.presence_penalty == 0
            and self.frequency_penalty == 0
        )


def _require(holds: bool, name: str, value: float, range_: str) -> None:
    if not holds:
        raise UsageError(f"{name} is {value}; it must be {range_}")


GREEDY = Sampling()
