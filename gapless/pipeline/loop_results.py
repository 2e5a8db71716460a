"""What a decode loop tells of its steps."""

from __future__ import annotations

from dataclasses import dataclass

from gapless.pipeline.sequence import FinishReason


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token of a sequence's answer, and why the answer ends with it, if it does."""

    sequence: int
    token: int
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class LoopStep:
    """What one step gave, as the host saw it. Times are ``time.monotonic_ns``.

    Attributes:
        step: in the order of submission; prompts that join have a step of their own.
        tokens: one per sequence in the step that had not ended before it.
        submit_start_ns: before the step was submitted.
        submit_end_ns: after it was.
        ready_ns: when the host had its tokens.
    """

    step: int
    tokens: tuple[NewToken, ...]
    submit_start_ns: int
    submit_end_ns: int
    ready_ns: int


@dataclass(frozen=True, slots=True)
class LoopStatistics:
    """Counts since the loop was made.

    Attributes:
        steps: submitted, those of prompts that joined included.
        joined: sequences that were given a row.
        dropped_tokens: computed for sequences that had ended, since the host learnt of it late.
        in_flight_most: submitted and unread steps at any one time.
        sequential_steps: steps that nothing could overlap with.
        no_overlap_reason: why; None where the host runs ahead.
    """

    steps: int
    joined: int
    dropped_tokens: int
    in_flight_most: int
    sequential_steps: int
    no_overlap_reason: str | None
