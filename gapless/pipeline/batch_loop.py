"""The autoregressive loop: sequential, or with the host running ahead of the device.

At depth 1 the host submits a step, waits for its token, processes it, and submits the next one:
the device idles while the host works. At depth 2 step n+1 is submitted before the token of step n
is read. That is possible because the token never visits the host on its way to the next step; the
host only learns of it one step late. So a stop token is noticed one step late as well, and the
token of the extra step is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from gapless.errors import UsageError
from gapless.pipeline.step_marks import (
    SetStep,
    host_phases,
    ignore_step,
    step_setter,
    token_counter,
)
from gapless.pipeline.step_program import StepProgram

SEQUENTIAL = 1
DOUBLE_BUFFERED = 2


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step gave, as the host saw it. Times are ``time.monotonic_ns``, the
    recorder's clock.

    Attributes:
        step: 0 is the prefill, n > 0 the nth replay.
        tokens: one per row; None for a row that had stopped before this step.
        submit_start_ns: before the step was submitted (for step 0: before its copy was).
        submit_end_ns: after the step, the copy of its tokens and the event were submitted.
        ready_ns: when the host had the tokens.
    """

    step: int
    tokens: tuple[int | None, ...]
    submit_start_ns: int
    submit_end_ns: int
    ready_ns: int


Steps = Generator[StepResult, None, None]


class BatchLoop:
    """Drives a step program and yields each step's tokens as the host learns them.

    Args:
        program: the step to drive, already prefilled whenever ``run`` is called.
        depth: steps in flight before the host reads; 1 is sequential, 2 double buffered.
        host_work: called with every result after it was read and before the next submission that
            depends on it; it stands for whatever a server does per step.

    Raises:
        ValueError: the depth is below 1, or greater than the program was prepared for.
    """

    def __init__(
        self,
        program: StepProgram,
        depth: int = DOUBLE_BUFFERED,
        host_work: Callable[[StepResult], None] | None = None,
    ) -> None:
        if depth < 1:
            raise ValueError(f"the depth must be at least 1, got {depth}")
        self._program = program
        self._depth = depth
        self._host_work = host_work
        self._ring = program.ring
        if self._ring.slots <= depth:
            raise ValueError(
                f"depth {depth} needs a program prepared for it; this one is for "
                f"{self._ring.slots - 1} at most"
            )
        self._phases = host_phases()
        self._count_tokens = token_counter()
        self._set_step: SetStep = ignore_step
        self._submit_times_ns: list[tuple[int, int]] = []

    def run(self, max_new_tokens: int, stop_tokens: Sequence[int] = ()) -> Steps:
        """Generate up to ``max_new_tokens`` per row, the prefill's token included.

        A row ends with its first stop token, which is yielded. The loop ends when all rows have.
        Closing the iterator early, or an exception in the host's work, lets the steps in flight
        finish before it returns, so that the device is left idle and its buffers reusable.

        Raises:
            UsageError: fewer than 1 token was asked for, or more than fit into the context.
            RuntimeError: the work failed on the device; raised at the step that reads it.
        """
        if max_new_tokens < 1:
            raise UsageError(f"{max_new_tokens} new tokens were asked for; ask for at least 1")
        if max_new_tokens - 1 > self._program.room:
            raise UsageError(
                f"{max_new_tokens} new tokens were asked for and {self._program.room + 1} fit into "
                "the context after the prompt; ask for fewer or raise the context (--context)"
            )
        stops = frozenset(stop_tokens)
        live = [True] * self._ring.rows
        times = self._submit_times_ns = []
        self._set_step = step_setter(self._program.device)
        submitted = read = 0
        try:
            self._submit(submitted)
            submitted += 1
            while read < max_new_tokens and any(live):
                while submitted < max_new_tokens and submitted - read < self._depth:
                    self._submit(submitted)
                    submitted += 1
                self._phases.begin("wait", read)
                tokens = self._ring.pop()
                self._phases.begin("process", read)
                start_ns, end_ns = times[read]
                result = StepResult(
                    read, _mask(tokens, live), start_ns, end_ns, time.monotonic_ns()
                )
                read += 1
                self._count_tokens(sum(token is not None for token in result.tokens))
                for row, token in enumerate(tokens):
                    if token in stops:
                        live[row] = False
                if self._host_work is not None:
                    self._host_work(result)
                yield result
        except BaseException:  # an interrupt or a closed iterator too: leave the device idle
            with suppress(RuntimeError):  # the first error is the one to tell
                self._drain()
            raise
        self._drain()

    def _submit(self, step: int) -> None:
        self._phases.begin("submit", step)
        start_ns = time.monotonic_ns()
        self._set_step(step)
        if step > 0:
            self._program.submit()
        else:
            self._ring.push()  # the prefill has sampled the first token already
        self._submit_times_ns.append((start_ns, time.monotonic_ns()))

    def _drain(self) -> None:
        """Leave nothing in flight: the extra step at depth 2, or whatever an interrupt left."""
        self._phases.end()
        self._set_step(-1)  # what this thread submits next belongs to no step
        if self._program.device.type != "cpu":
            torch.accelerator.synchronize(self._program.device)
        self._ring.clear()


def _mask(tokens: list[int], live: list[bool]) -> tuple[int | None, ...]:
    return tuple(token if alive else None for token, alive in zip(tokens, live, strict=True))


def collect(results: Iterable[StepResult]) -> list[list[int]]:
    """Run to the end and return each row's tokens, its stop token included."""
    rows: list[list[int]] = []
    for result in results:
        rows = rows or [[] for _ in result.tokens]
        for row, token in zip(rows, result.tokens, strict=True):
            if token is not None:
                row.append(token)
    return rows
