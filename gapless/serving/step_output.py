"""A step's results on their way to the host."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from gapless.profile import host_range


class StepOutput(AsyncModelRunnerOutput):
    """Upstream's results, with the wait for them marked and told."""

    def __init__(
        self, results: AsyncModelRunnerOutput, step: int, on_read: Callable[[], None]
    ) -> None:
        self._results = results
        self._step = step
        self._on_read = on_read

    def get_output(self) -> ModelRunnerOutput:
        """Wait for the results."""
        with host_range("wait", self._step):
            output = self._results.get_output()
        self._on_read()
        return output
