"""Double buffering for any step function: the next input is submitted before a result is read.

    with Pipeline(step) as pipeline:
        for result in pipeline.map(batches):
            ...

While the host looks at one result, the device already works on the next input. docs/pipeline.md
says when that helps, and when it cannot.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any

import torch

from gapless.pipeline.device_choice import choose_device
from gapless.pipeline.mapped_results import MappedResults, warn_of_dropped
from gapless.pipeline.pipeline_statistics import PipelineStatistics
from gapless.pipeline.step_queue import StepQueue


class Pipeline:
    """Runs a function over inputs on a device, the host running ahead of the results that it reads.

    Inputs and results are trees: tensors, or tuples, lists, dicts and registered classes of them
    and of anything else, which is handed through. An input's tensors are on the host, or on the
    device already; the function gets them on the device. What it returns arrives in host memory of
    its own that no later step writes to, pinned where there is a device. Results do not require
    gradients. The function is called in the thread, in the autograd mode, and on the device's
    stream that was current when the pipeline was made; it must not wait for the device. One thread
    uses a pipeline at a time.

    Args:
        function: one step. Its input's tensors may be written to; they are its own, except those
            that were passed on the device.
        depth: steps in flight at most: submitted and not read. 1 is sequential, 2 double-buffered.
        device: where to run: a device or a name that ``choose_device`` takes.
        prepare: called on the host with each input before it is sent; its result is sent instead.
        inputs_stay: promise that pinned tensors among the inputs are not written to until their
            result was read. They are sent from where they are; others are copied first.

    Raises:
        ValueError: the depth is below 1, or the device is ``meta`` or the like.
        TypeError: an argument is of the wrong type.
        UsageError: there is no such device.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        depth: int = 2,
        *,
        device: torch.device | str = "auto",
        prepare: Callable[[Any], Any] | None = None,
        inputs_stay: bool = False,
    ) -> None:
        self._is_closed: bool = True  # until it is complete: __del__ runs also if this raises
        if not callable(function):
            raise TypeError(
                f"the step must be a function of one input, got {type(function).__name__}"
            )
        if prepare is not None and not callable(prepare):
            raise TypeError(
                f"prepare must be a function of one input, or None, got {type(prepare).__name__}"
            )
        if not isinstance(depth, int) or isinstance(depth, bool):
            raise TypeError(
                f"the depth must be a whole number of steps, got {depth!r}, which is of type "
                f"{type(depth).__name__}"
            )
        if depth < 1:
            raise ValueError(f"the depth must be at least 1, got {depth}; 2 is double-buffered")
        if not isinstance(device, (str, torch.device)):
            raise TypeError(
                f"the device must be a torch.device or a name, got {type(device).__name__}"
            )
        self._device = torch.empty(0, device=choose_device(str(device))).device  # with its index
        self._depth = depth
        self._queue = StepQueue(function, prepare, self._device, depth, inputs_stay)
        # Not kept alive from here: after a break nobody holds it, and that ends it.
        self._mapped: weakref.ref[MappedResults] | None = None
        self._is_closed = False

    @property
    def device(self) -> torch.device:
        """Where the function runs."""
        return self._device

    @property
    def depth(self) -> int:
        """How many steps may be in flight."""
        return self._depth

    @property
    def in_flight(self) -> int:
        """Steps that were submitted and whose results were not read; at most ``depth``."""
        return self._queue.in_flight

    @property
    def statistics(self) -> PipelineStatistics:
        """Counts and host times so far; also after the pipeline was closed."""
        return self._queue.statistics()

    def map(self, inputs: Iterable[Any], *, return_errors: bool = False) -> MappedResults:
        """Results in the order of the inputs, each while the next inputs are on the device.

        Inputs are taken up to ``depth - 1`` ahead of the result that is handed out, so an input
        must not need a result that was not handed out yet. See ``MappedResults`` for errors and
        for ending early.

        Args:
            inputs: any iterable, also one without end. A generator is closed in the end.
            return_errors: hand out a ``StepError`` as a result instead of raising it.

        Raises:
            TypeError: the inputs cannot be iterated over.
            RuntimeError: the pipeline is closed, or has unread results of something else.
        """
        self._require_unmapped("map")
        if self._queue.in_flight:
            raise RuntimeError(
                f"{self._queue.in_flight} submitted step(s) were not read; read them with result() "
                "before map()"
            )
        try:
            iterator = iter(inputs)
        except TypeError as error:
            raise TypeError(
                f"the inputs must be iterable, got {type(inputs).__name__}; pass a single input to "
                "submit()"
            ) from error
        mapped = MappedResults(self._queue, iterator, self._depth, return_errors)
        self._mapped = weakref.ref(mapped)
        return mapped

    def submit(self, item: Any) -> int:
        """Submit one input and return its number; the host does not wait.

        What goes wrong in ``prepare`` or in the function is raised by ``result``, in its turn.

        Raises:
            RuntimeError: ``depth`` steps are in flight, so that a result has to be read first; or
                the pipeline is closed, or in use by ``map``.
        """
        self._require_unmapped("submit")
        number = self._queue.next_number
        try:
            self._queue.submit(item, number)
        finally:
            self._queue.phases.end()
        return number

    def result(self) -> Any:
        """Wait for the oldest step that was not read, and return its result.

        Raises:
            RuntimeError: nothing was submitted, or the pipeline is closed, or in use by ``map``.
            StepError: the step failed; the next call gives the next step's result.
        """
        self._require_unmapped("result")
        try:
            return self._queue.take()
        finally:
            self._queue.phases.end()

    def close(self) -> None:
        """Wait for what is in flight and drop its results. Closing twice is harmless.

        Warns:
            PipelineWarning: a dropped step had failed on the device.
        """
        self._close(is_silent=False)

    def _close(self, is_silent: bool) -> None:
        if self._is_closed:
            return
        mapped = self._open_map()
        errors = self._queue.drain()
        self._is_closed = True
        if mapped is not None:
            mapped.close()  # finds nothing in flight any more
        if not is_silent:
            warn_of_dropped(errors)

    def _require_unmapped(self, call: str) -> None:
        if self._is_closed:
            raise RuntimeError(f"{call}() was called on a closed pipeline; make a new one")
        if self._open_map() is not None:
            raise RuntimeError(
                f"{call}() was called while map() is under way; read its results to the end, or "
                "close() what map() returned"
            )

    def _open_map(self) -> MappedResults | None:
        mapped = None if self._mapped is None else self._mapped()
        return mapped if mapped is not None and mapped.is_open else None

    def __enter__(self) -> Pipeline:
        if self._is_closed:
            raise RuntimeError("a closed pipeline cannot be entered; make a new one")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(is_silent=error is not None)  # the first error is the one to tell

    def __del__(self) -> None:
        if self._is_closed or not self._queue.in_flight or self._open_map() is not None:
            return
        with suppress(Exception):
            warnings.warn(
                f"a pipeline with {self._queue.in_flight} unread step(s) was not closed; use it in "
                "a with block",
                ResourceWarning,
                stacklevel=2,
            )
        with suppress(Exception):
            self._close(is_silent=True)
