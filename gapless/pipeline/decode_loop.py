"""Autoregressive generation for sequences that come and go, while the host runs ahead.

Each step's tokens are fed back on the device, so that step n+1 can be submitted before the host has
read step n. A sequence that joins has its prompt queued behind the steps in flight; one that leaves
frees its row for the next step that is submitted. Neither waits for the device. What the host
learns late it mends late: a stop token is noticed after the next step was submitted, and that
step's token of the row is dropped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable
from collections.abc import Sequence as Items
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from types import TracebackType
from typing import Any

import torch

from gapless.errors import UsageError
from gapless.pipeline.decode_step import DecodeStep
from gapless.pipeline.host_sampled_step import REASON, HostSampledStep, HostSampler
from gapless.pipeline.loop_results import LoopStatistics, LoopStep, NewToken
from gapless.pipeline.pipeline_warning import warn_caller
from gapless.pipeline.sampling import GREEDY, Sampling
from gapless.pipeline.sequence import FinishReason, Request, Sequence
from gapless.pipeline.step_marks import (
    SetStep,
    host_phases,
    ignore_step,
    step_setter,
    token_counter,
)
from gapless.pipeline.step_program import StepProgram, prepare
from gapless.pipeline.token_ring import TokenRing

_CPU_REASON = "the CPU executes each operation before it returns"


@dataclass(slots=True)
class _InFlight:
    number: int
    ring: TokenRing
    rows: list[tuple[int, Sequence]]
    submit_start_ns: int
    submit_end_ns: int


class DecodeLoop:
    """Generates for up to ``rows`` sequences at a time; others wait for a row.

    Depth 1 is the sequential reference: its tokens are any other depth's. ``with`` closes it.

    Args:
        model: a ``transformers`` causal LM in eval mode, on its device.
        rows: sequences at a time; the batch has so many rows whether they are in use or not.
        context: positions per sequence, prompt and answer together.
        depth: steps in flight before the host reads; 2 is double buffering.
        samples: False where all sequences are greedy, which needs less memory.
        host_sampler: chooses the tokens on the host instead, for all rows, from float32 logits
            ``[rows, vocabulary]``. Nothing overlaps then, whatever the depth; it is warned of and
            counted.

    Raises:
        UsageError: the context exceeds the model's, or the model's attention is not supported.
        torch.OutOfMemoryError: the KV cache does not fit on the device.

    Warns:
        PipelineWarning: there is a ``host_sampler`` and the depth is above 1.
    """

    def __init__(
        self,
        model: Any,
        rows: int = 1,
        context: int = 1024,
        depth: int = 2,
        samples: bool = True,
        host_sampler: HostSampler | None = None,
    ) -> None:
        for name, value in (("depth", depth), ("rows", rows), ("context", context)):
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"the {name} must be at least 1, a whole number; got {value!r}")
        if not hasattr(model, "config"):
            raise UsageError(
                f"the model is a {type(model).__name__}; it must be a causal language model of "
                "transformers"
            )
        if getattr(model, "training", False):
            raise UsageError("the model is in training mode; call eval() first")
        self._step = DecodeStep(model, rows, context, samples and host_sampler is None)
        self._choose_first = None
        self._program: StepProgram
        self._no_overlap_reason = _CPU_REASON if self._step.device.type == "cpu" else None
        if host_sampler is not None:
            sampled = HostSampledStep(self._step, host_sampler)
            self._program, self._choose_first = sampled, sampled.choose_first
            self._no_overlap_reason = REASON
            if depth > 1:
                warn_caller(f"{REASON}; going on sequentially, at depth 1 instead of {depth}")
            depth = 1
        else:
            self._program = prepare(self._step, depth)
        self._step.reset()
        self._depth = depth
        # Steps that are graphs copy into a ring of their own.
        self._joins = TokenRing(self._step.tokens, depth + 1)
        self._phases = host_phases()
        self._count_tokens = token_counter()
        self._set_step: SetStep = ignore_step
        self._waiting: deque[Sequence] = deque()
        self._rows: list[Sequence | None] = [None] * rows
        self._in_flight: deque[_InFlight] = deque()
        self._sequences: dict[int, Sequence] = {}
        self._steps = self._joined = self._dropped = self._most = self._named = 0
        self._is_closed = False

    @property
    def depth(self) -> int:
        """Steps in flight before the host reads; 1 where sampling is on the host."""
        return self._depth

    @property
    def unfinished(self) -> int:
        """Sequences that wait or run."""
        return sum(each.finish_reason is None for each in self._sequences.values())

    @property
    def statistics(self) -> LoopStatistics:
        """Counts so far."""
        return LoopStatistics(
            self._steps,
            self._joined,
            self._dropped,
            self._most,
            self._steps if self._no_overlap_reason else 0,
            self._no_overlap_reason,
        )

    def add(
        self,
        prompt: Items[int],
        max_new_tokens: int,
        sampling: Sampling = GREEDY,
        stop_tokens: Iterable[int] = (),
    ) -> int:
        """Let a sequence join as soon as a row is free; also while ``run`` is under way.

        Returns:
            the sequence's number, which never is another one's.

        Raises:
            UsageError: the prompt is empty, has ids that the model does not know, or does not fit
                into the context together with the answer; or ``sampling`` cannot be served.
            RuntimeError: the loop is closed.
        """
        self._require_open()
        if not isinstance(sampling, Sampling):
            raise UsageError(f"sampling is a {type(sampling).__name__}; it must be a Sampling")
        prompt = self._token_ids(prompt, "the prompt has")
        stops = self._token_ids(stop_tokens, "stop_tokens has")
        self._require_fits(prompt, max_new_tokens)
        if not sampling.is_argmax and self._step.sampler is None:
            raise UsageError(
                "the tokens are chosen by host_sampler, so that sampling= has no say; leave it out"
                if self._choose_first
                else "the loop was made with samples=False, for greedy sequences; leave that out"
            )
        request = Request(prompt, max_new_tokens, sampling, frozenset(stops))
        sequence = Sequence(self._named, request)
        self._named += 1
        self._sequences[sequence.number] = sequence
        self._waiting.append(sequence)
        return sequence.number

    def remove(self, number: int) -> None:
        """End a sequence early; its row is free for the next step. Nothing to do where it ended.

        Raises:
            KeyError: there is no such sequence.
        """
        sequence = self._sequence(number)
        if sequence.finish_reason is None:
            sequence.finish_reason = "removed"
            with suppress(ValueError):
                self._waiting.remove(sequence)

    def tokens(self, number: int) -> list[int]:
        """The sequence's answer so far, its stop token included.

        Raises:
            KeyError: there is no such sequence.
        """
        return list(self._sequence(number).tokens)

    def finish_reason(self, number: int) -> FinishReason | None:
        """``stop``, ``length``, ``removed`` or ``failed``; None while the sequence goes on.

        Raises:
            KeyError: there is no such sequence.
        """
        return self._sequence(number).finish_reason

    def forget(self, number: int) -> None:
        """Drop an ended sequence and its tokens, which are kept until then.

        Raises:
            KeyError: there is no such sequence.
            RuntimeError: it has not ended; ``remove`` it first.
        """
        if self._sequence(number).finish_reason is None:
            raise RuntimeError(f"sequence {number} has not ended; remove() it first")
        del self._sequences[number]

    def run(self) -> Generator[LoopStep, None, None]:
        """Generate until no sequence is left, and yield each step's tokens as the host learns them.

        Ending the iteration early loses nothing: the next ``run`` goes on from there. After an
        error the sequences that had a row end as ``failed``; those that wait go on with the next
        ``run``.

        Raises:
            RuntimeError: the work failed on the device, raised at the step that reads it, once. Or
                the loop is closed.
            Exception: what ``host_sampler`` raised.
        """
        self._require_open()
        self._set_step = step_setter(self._step.device)
        while not self._is_closed:
            try:
                while len(self._in_flight) < self._depth and self._submit_next():
                    pass
            except BaseException:  # an interrupt too: half a step may have been submitted
                self._fail()
                raise
            self._most = max(self._most, len(self._in_flight))
            if not self._in_flight:
                self._phases.end()
                return
            try:
                result = self._read()
            except Exception:  # after an interrupt the step can still be read
                self._fail()
                raise
            if result.tokens:
                try:
                    yield result
                except BaseException:
                    self._phases.end()  # the iteration was ended early
                    raise

    def close(self) -> None:
        """Wait for what is in flight and drop it. Closing twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        for sequence in self._sequences.values():
            if sequence.finish_reason is None:
                sequence.finish_reason = "removed"
        with suppress(RuntimeError):  # nobody is left to be told
            self._drain()

    def _submit_next(self) -> bool:
        """Submit the prompts that wait, if a row is free, or a step; false if none is wanted."""
        for row, sequence in enumerate(self._rows):
            if sequence is not None and sequence.is_submitted:
                self._step.leave(row)
                self._rows[row] = None
        free = [row for row, sequence in enumerate(self._rows) if sequence is None]
        joining = [
            (row, self._waiting.popleft()) for row in free[: min(len(free), len(self._waiting))]
        ]
        active = joining or [
            (row, sequence) for row, sequence in enumerate(self._rows) if sequence is not None
        ]
        if not active:
            return False
        number = self._steps
        self._phases.begin("submit", number)
        start_ns = time.monotonic_ns()
        self._set_step(number)
        if joining:
            ring = self._joins
            self._join(joining)
        else:
            ring = self._program.ring
            self._program.submit(any(not s.request.sampling.is_argmax for _, s in active))
        self._set_step(-1)
        end_ns = time.monotonic_ns()
        for _, sequence in active:
            sequence.submitted += 1
        self._steps += 1
        self._in_flight.append(_InFlight(number, ring, active, start_ns, end_ns))
        return True

    def _join(self, joining: list[tuple[int, Sequence]]) -> None:
        # All of them before anything can go wrong, so that none gets lost.
        for row, sequence in joining:
            self._rows[row] = sequence
        for row, sequence in joining:
            request = sequence.request
            self._step.join(row, request.prompt, request.sampling, self._choose_first)
            self._joined += 1
        self._joins.push()

    def _read(self) -> LoopStep:
        step = self._in_flight[0]
        self._phases.begin("wait", step.number)
        tokens = step.ring.pop()
        self._phases.begin("process", step.number)
        ready_ns = time.monotonic_ns()
        self._in_flight.popleft()
        news = []
        for row, sequence in step.rows:
            if sequence.take(tokens[row]):
                news.append(NewToken(sequence.number, tokens[row], sequence.finish_reason))
            else:
                self._dropped += 1
        self._count_tokens(len(news))
        return LoopStep(
            step.number, tuple(news), step.submit_start_ns, step.submit_end_ns, ready_ns
        )

    def _fail(self) -> None:
        for sequence in [each for each in self._rows if each is not None]:
            sequence.finish_reason = sequence.finish_reason or "failed"
        for step in self._in_flight:  # of those that had left their row, and have unread tokens
            for _, sequence in step.rows:
                sequence.finish_reason = sequence.finish_reason or "failed"
        with suppress(RuntimeError):  # the first error is the one to tell
            self._drain()
        self._rows = [None] * len(self._rows)
        with suppress(RuntimeError):
            self._step.reset()

    def _drain(self) -> None:
        self._phases.end()
        self._set_step(-1)
        try:
            if self._step.device.type != "cpu":
                torch.accelerator.synchronize(self._step.device)
        finally:
            self._in_flight.clear()
            self._joins.clear()
            self._program.ring.clear()

    def _require_fits(self, prompt: tuple[int, ...], max_new_tokens: int) -> None:
        if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
            raise UsageError(f"{max_new_tokens!r} new tokens were asked for; ask for at least 1")
        if not prompt:
            raise UsageError("the prompt has no tokens; give it at least one")
        # The last token is read by the host only, so it needs no position.
        wanted, context = len(prompt) + max_new_tokens - 1, self._step.context
        if wanted > context:
            raise UsageError(
                f"a prompt of {len(prompt)} tokens and {max_new_tokens} new ones need {wanted} "
                f"positions and the loop has {context}; ask for fewer or make it with context="
                f"{wanted}"
            )

    def _token_ids(self, given: Iterable[int], what: str) -> tuple[int, ...]:
        if isinstance(given, torch.Tensor):
            given = given.tolist()
        try:
            tokens = tuple(given)
        except TypeError:
            raise UsageError(f"{what} {given!r}; give a list of token ids") from None
        vocabulary = self._step.model.config.vocab_size
        for token in tokens:
            if not isinstance(token, Integral) or not 0 <= int(token) < vocabulary:
                raise UsageError(
                    f"{what} the token {token!r}; ids are whole numbers, 0 to {vocabulary - 1}"
                )
        return tuple(int(token) for token in tokens)

    def _sequence(self, number: int) -> Sequence:
        try:
            return self._sequences[number]
        except KeyError:
            raise KeyError(
                f"there is no sequence {number!r}; add() says the number of each"
            ) from None

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the loop is closed; make a new one")

    def __enter__(self) -> DecodeLoop:
        self._require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
