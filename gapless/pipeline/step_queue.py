"""The steps in flight: submitted in order, waited for in order, never more than the depth."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import torch

from gapless.pipeline.host_transfer import HostTransfer
from gapless.pipeline.host_waits import HostWait, HostWaitCounter
from gapless.pipeline.pipeline_statistics import PipelineStatistics
from gapless.pipeline.pipeline_warning import warn_caller
from gapless.pipeline.receipts import Receipts
from gapless.pipeline.step_error import StepError
from gapless.pipeline.step_marks import SetStep, host_phases, ignore_step, step_setter

_CPU_REASON = "the CPU executes each operation before it returns"


@dataclass(slots=True, eq=False)
class _Step:
    number: int  # since the pipeline was made; what the recorder knows it by
    index: int  # of its input
    slot: int  # its event and its receipt; -1 for an input that nothing was submitted for
    ticket: int = -1  # what its receipt says
    # Staging buffers and outputs, whose memory must last until the copies have run. Allocators
    # see to that for memory of the same stream; an output may be of another one.
    kept: tuple[Any, Any] = (None, None)
    result: Any = None
    error: StepError | None = None


class StepQueue:
    """Submits steps to one stream and hands out their results in order.

    What it does is marked in ``phases``; the caller says what it does itself, or ends them.

    Args:
        function: the step; takes a tree with all its tensors on the device.
        prepare: run on the host with each input before; None for nothing.
        device: with its index.
        depth: steps in flight at most.
        inputs_stay: see ``HostTransfer``.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        prepare: Callable[[Any], Any] | None,
        device: torch.device,
        depth: int,
        inputs_stay: bool,
    ) -> None:
        self._function = function
        self._prepare = prepare
        self._device = device
        self._depth = depth
        self._stream: torch.Stream | None = None
        self._on_device: AbstractContextManager[object] = nullcontext()
        self._on_stream: AbstractContextManager[object] = nullcontext()
        self._events: list[torch.Event] = []
        if device.type != "cpu":
            self._stream = torch.accelerator.current_stream(device)
            self._on_stream = self._stream
            # A default stream that is its device's current one does not make the device current.
            if torch.accelerator.device_count() > 1:
                self._on_device = torch.accelerator.device_index(device.index)
            self._events = [torch.Event(device) for _ in range(depth)]
        with self._on_device, self._on_stream:
            self._receipts = Receipts(device, depth)
        self._transfer = HostTransfer(device, inputs_stay)
        self._waits = HostWaitCounter(device)
        self.phases = host_phases()
        self._set_step: SetStep = ignore_step
        self._steps: deque[_Step] = deque()
        self._interrupted: set[int] = set()  # slots of steps that were given up in the middle
        self._is_submitting = False
        # The last failure of the device that was seen, and which steps it may have stopped.
        self._failure: Exception | None = None
        self._failure_before = 0
        self._failure_is_charged = False  # to the first step that it stopped; the others followed
        self._tickets = 0
        self._submitted = self._read = self._failed = self._dropped = self._most = 0
        self._drained = self._host_wait_steps = 0
        self._prepare_ns = self._submit_ns = self._wait_ns = 0
        self._host_waits: dict[tuple[str, str], int] = {}
        self._no_overlap_reason = _CPU_REASON if device.type == "cpu" else None

    @property
    def in_flight(self) -> int:
        """Steps that were submitted and not read."""
        return len(self._steps)

    @property
    def next_number(self) -> int:
        """The number of the step that is submitted next."""
        return self._submitted

    @property
    def next_read(self) -> int:
        """The number of the step that is read next."""
        return self._steps[0].number if self._steps else self._submitted

    def submit(self, item: Any, index: int) -> None:
        """Submit one step. What goes wrong on the host is kept for ``take``.

        Raises:
            RuntimeError: as many steps as the depth allows are in flight, or this is called from
                within a step's function.
        """
        self._require_room()
        self.phases.begin("prepare", self._submitted)
        if not self._steps:  # a run begins: somebody may have begun to record
            self._set_step = step_setter(self._device)
        step = _Step(self._submitted, index, self._submitted % self._depth, self._tickets)
        self._tickets += 1  # also for a step that is interrupted and not counted
        stage = "prepare"
        start_ns, prepared_ns = monotonic_ns(), 0
        self._is_submitting = True
        self._waits.begin()
        try:
            with self._on_device, self._on_stream:
                self._set_step(step.number)
                prepared = item if self._prepare is None else self._prepare(item)
                staged = self._transfer.stage(prepared)
                self.phases.begin("submit", step.number)
                stage, prepared_ns = "submit", monotonic_ns()
                self._submit(step, staged)
        except Exception as error:
            step.error = StepError(index, stage, error)
            if isinstance(error, torch.AcceleratorError):
                self._keep_failure(error)
            self._record(step.slot)
        except BaseException:
            # An interrupt, which belongs to no result. What was submitted so far is waited for.
            self._interrupted.add(step.slot)
            self._record(step.slot)
            raise
        finally:
            self._is_submitting = False
            self._set_step(-1)  # what this thread submits next belongs to no step
            end_ns = monotonic_ns()
            prepared_ns = prepared_ns or end_ns
            self._prepare_ns += prepared_ns - start_ns
            self._submit_ns += end_ns - prepared_ns
        self._append(step)
        self._count_waits(step)

    def fail(self, error: StepError) -> None:
        """Put an error in line, for an input that could not even be taken."""
        self._require_room()
        self._append(_Step(self._submitted, error.index, -1, error=error))

    def take(self, return_error: bool = False) -> Any:
        """Wait for the oldest step and return its result, or its error where that is asked for.

        Raises:
            RuntimeError: nothing is in flight, or this is called from within a step's function.
            StepError: the step failed, on the host or on the device.
        """
        self._require_idle()
        if not self._steps:
            raise RuntimeError("no result is on its way; submit an input first")
        step = self._steps[0]
        self.phases.begin("wait", step.number)
        self._finish(step)
        self._read += 1
        # An error's traceback knows its frames and their callers: a name for the error in one of
        # them would make a cycle, which keeps their tensors until Python looks for cycles.
        error, step.error = step.error, None
        try:
            if error is None:
                return step.result
            if return_error:
                return error
            raise error
        finally:
            del error

    def drain(self) -> list[StepError]:
        """Wait for all steps in flight, throw them away, and return what had gone wrong.

        Raises:
            RuntimeError: this is called from within a step's function.
        """
        self._require_idle()
        errors = []
        while self._steps:
            step = self._steps[0]
            self._finish(step)
            self._dropped += 1
            if step.error is not None:
                errors.append(step.error)
                step.error = None
        for slot in tuple(self._interrupted):
            if self._events:
                with suppress(Exception):  # the interrupt was the error to tell
                    self._events[slot].synchronize()
            self._interrupted.discard(slot)
        return errors

    def statistics(self) -> PipelineStatistics:
        """Counts and times so far."""
        counting = self._waits.is_counting
        return PipelineStatistics(
            submitted_steps=self._submitted,
            read_steps=self._read,
            failed_steps=self._failed,
            dropped_steps=self._dropped,
            in_flight_most=self._most,
            prepare_us=self._prepare_ns / 1e3,
            submit_us=self._submit_ns / 1e3,
            wait_us=self._wait_ns / 1e3,
            drained_steps=self._drained,
            host_wait_steps=self._host_wait_steps if counting else None,
            host_waits=tuple(HostWait(*key, count) for key, count in self._host_waits.items()),
            no_overlap_reason=self._no_overlap_reason,
        )

    def _require_idle(self) -> None:
        if self._is_submitting:
            raise RuntimeError(
                "the pipeline was called while it submits a step: from its own function, or from "
                "another thread; use one pipeline per thread, outside its function"
            )

    def _require_room(self) -> None:
        self._require_idle()
        if len(self._steps) >= self._depth:
            raise RuntimeError(
                f"{len(self._steps)} step(s) are in flight and the depth is {self._depth}; take a "
                "result before submitting more, or make the pipeline deeper"
            )

    def _submit(self, step: _Step, staged: Any) -> None:
        self._receipts.open(step.slot, step.ticket)
        output = self._function(self._transfer.send(staged))
        if self._stream is None or self._stream.query():
            self._drained += 1
        step.result = self._transfer.fetch(output)
        step.kept = (staged, output)
        self._receipts.close(step.slot)
        if self._events:
            self._events[step.slot].record(self._stream)

    def _record(self, slot: int) -> None:
        if self._events:
            with suppress(RuntimeError):  # a device that is broken for good says so at each call
                self._events[slot].record(self._stream)

    def _append(self, step: _Step) -> None:
        self._steps.append(step)
        self._submitted += 1
        self._most = max(self._most, len(self._steps))

    def _finish(self, step: _Step) -> None:
        """Wait for the oldest step, and take it out of the queue; an interrupt leaves it in."""
        failure: Exception | None = None
        start_ns = monotonic_ns()
        try:
            if self._events and step.slot >= 0:
                self._events[step.slot].synchronize()
        except Exception as error:
            failure = error.with_traceback(None)  # it would only show this line; and see take
            self._keep_failure(failure)
        finally:
            self._wait_ns += monotonic_ns() - start_ns
        self._blame(step, failure)
        if step.error is not None:
            self._failed += 1
            step.result = None
        step.kept = (None, None)
        self._steps.popleft()
        if step.number + 1 >= self._failure_before:
            self._failure = None  # its traceback holds tensors

    def _blame(self, step: _Step, failure: Exception | None) -> None:
        """Decide whether the step failed, and whether it or an earlier one is to blame.

        A failure of the device may be raised anywhere, also inside the function of a later step.
        The first step without a receipt is the one that it belongs to.
        """
        cause = self._failure if step.number < self._failure_before else None
        if step.error is not None:
            if failure is not None:
                step.error.add_note(f"work that it had submitted failed, too: {failure}")
                self._failure_is_charged = True
            elif cause is not None and step.error.__cause__ is cause:
                if self._failure_is_charged:
                    step.error = StepError(step.index, step.error.stage, cause, is_consequence=True)
                self._failure_is_charged = True
        elif failure is not None:
            step.error = StepError(step.index, "device", failure)
            self._failure_is_charged = True
        elif not self._receipts.arrived(step.slot, step.ticket):
            follows = cause is None or self._failure_is_charged
            step.error = StepError(step.index, "device", cause, is_consequence=follows)
            self._failure_is_charged = True

    def _keep_failure(self, error: Exception) -> None:
        self._failure = error
        self._failure_before = self._submitted + self._is_submitting
        self._failure_is_charged = False

    def _count_waits(self, step: _Step) -> None:
        waits = self._waits.end()
        if not waits:
            return
        self._host_wait_steps += 1
        for wait in waits:
            key = (wait.operation, wait.reason)
            self._host_waits[key] = self._host_waits.get(key, 0) + wait.count
        if self._no_overlap_reason is not None:
            return
        what = ", ".join(f"{wait.operation} ({wait.reason})" for wait in waits)
        self._no_overlap_reason = f"the step of input {step.index} waited for the device: {what}"
        if self._depth > 1:
            warn_caller(
                f"{self._no_overlap_reason}. The host cannot run ahead of such a step; keep values "
                "on the device and return them. Pipeline.statistics counts further ones"
            )
