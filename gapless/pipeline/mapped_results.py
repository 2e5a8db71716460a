"""The iterator that ``Pipeline.map`` returns."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any

from gapless.pipeline.pipeline_warning import warn_caller
from gapless.pipeline.step_error import StepError
from gapless.pipeline.step_queue import StepQueue


class MappedResults(Iterator[Any]):
    """Results in the order of the inputs.

    An error is raised in the place of the result that it belongs to; asking on afterwards gives
    the next one. A ``for`` loop ends with the error, so where the others are wanted, map with
    ``return_errors``. After an error of the inputs' own iterator there is nothing more.

    Closing waits for the steps in flight, drops their results, and closes the inputs where they
    are a generator. It happens at the end, at the end of the pipeline's ``with`` block, by
    ``close``, and when nobody holds the iterator any more, as after a ``break``.

    Args:
        queue: empty, and used by nobody else until this is closed.
        inputs: what to submit.
        depth: steps in flight at most.
        return_errors: return errors instead of raising them.
    """

    def __init__(
        self, queue: StepQueue, inputs: Iterator[Any], depth: int, return_errors: bool
    ) -> None:
        self._queue = queue
        self._inputs: Iterator[Any] | None = inputs
        self._depth = depth
        self._return_errors = return_errors
        self._taken = 0
        self._has_ended = False  # the inputs
        self._is_taking_input = False
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether there may be more results."""
        return self._is_open

    def __iter__(self) -> MappedResults:
        return self

    def __next__(self) -> Any:
        if self._is_taking_input:
            raise RuntimeError(
                "the inputs asked for a result that was not handed out yet, since inputs are taken "
                f"{self._depth - 1} step(s) ahead; keep what a step needs of an earlier one on the "
                "device, or use depth=1 and what the loop has seen"
            )
        if not self._is_open:
            raise StopIteration
        try:
            while not self._has_ended and self._queue.in_flight < self._depth:
                self._submit_next()
        except BaseException:  # an interrupt
            self._queue.phases.end()
            raise
        if not self._queue.in_flight:
            self.close()
            raise StopIteration
        number = self._queue.next_read
        try:
            return self._queue.take(self._return_errors)
        finally:
            # From here to the next call the caller looks at the result.
            self._queue.phases.begin("process", number)

    def close(self) -> None:
        """Wait for what is in flight, drop its results, and close the inputs.

        Warns:
            PipelineWarning: a dropped step had failed on the device.
        """
        self._close(is_silent=False)

    def _close(self, is_silent: bool) -> None:
        if not self._is_open:
            return
        self._queue.phases.end()
        errors = self._queue.drain()
        self._is_open = False
        inputs, self._inputs = self._inputs, None
        if isinstance(inputs, Generator):
            inputs.close()
        if not is_silent:
            warn_of_dropped(errors)

    def _submit_next(self) -> None:
        assert self._inputs is not None
        index = self._taken
        self._is_taking_input = True
        try:
            self._queue.phases.begin("schedule", self._queue.next_number)
            item = next(self._inputs)
        except StopIteration:
            self._has_ended = True
            return
        except Exception as error:
            self._has_ended = True
            self._queue.fail(StepError(index, "input", error))
            return
        finally:
            self._is_taking_input = False
        self._taken += 1
        self._queue.submit(item, index)

    def __enter__(self) -> MappedResults:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(is_silent=error is not None)  # the first error is the one to tell

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


def warn_of_dropped(errors: list[StepError]) -> None:
    """Warn where the device failed on steps whose results nobody will read."""
    failed = [each for each in errors if each.stage == "device" and not each.is_consequence]
    if failed:
        warn_caller(
            f"a pipeline was closed with unread steps, of which {len(failed)} had failed on the "
            f"device. {failed[0]}"
        )
