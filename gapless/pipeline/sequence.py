"""A sequence of a decode loop: what was asked for, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gapless.pipeline.sampling import Sampling

FinishReason = Literal["stop", "length", "removed", "failed"]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how to go on from it.

    Attributes:
        prompt: token ids.
        max_new_tokens: the answer ends after so many.
        sampling: how its tokens are chosen.
        stop_tokens: the answer ends with the first of these, which belongs to it.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    stop_tokens: frozenset[int]


@dataclass(slots=True, eq=False)
class Sequence:
    """A request under way.

    Attributes:
        number: the loop's name for it.
        request: what was asked for.
        tokens: of the answer, as far as the host has learnt of it.
        submitted: tokens of the answer that were submitted; the host has read as many or fewer.
        finish_reason: None while it goes on.
    """

    number: int
    request: Request
    tokens: list[int] = field(default_factory=list)
    submitted: int = 0
    finish_reason: FinishReason | None = None

    @property
    def is_submitted(self) -> bool:
        """Whether no further step is wanted, as far as the host knows."""
        return self.finish_reason is not None or self.submitted == self.request.max_new_tokens

    def take(self, token: int) -> bool:
        """Add a token of the answer; false where it came after the end and is dropped."""
        if self.finish_reason is not None:
            return False
        self.tokens.append(token)
        if token in self.request.stop_tokens:
            self.finish_reason = "stop"
        elif len(self.tokens) == self.request.max_new_tokens:
            self.finish_reason = "length"
        return True
