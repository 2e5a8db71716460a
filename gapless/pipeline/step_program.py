"""How a decode step is submitted: replayed from a graph, or call by call.

The graph is ``torch.accelerator.Graph``, so any accelerator that has one is served; where there is
none (the CPU) the same step runs eagerly and gives the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from gapless.pipeline.decode_step import DecodeStep


class StepProgram(Protocol):
    """What the decode loop drives: submits steps and never waits for them."""

    @property
    def device(self) -> torch.device:
        """Where the steps run."""
        ...

    @property
    def tokens(self) -> torch.Tensor:
        """int64 ``[rows]`` on the device: each row's latest token, rewritten by every step."""
        ...

    @property
    def room(self) -> int:
        """Steps that fit into the context after the last prefill."""
        ...

    def submit(self) -> None:
        """Submit one step."""
        ...


class GraphStep:
    """A decode step captured once and replayed with one submit.

    The step's state is disturbed by the capture: prefill after it.

    Raises:
        RuntimeError: the device has no graphs, or the step waits for the host while captured.
    """

    def __init__(self, step: DecodeStep) -> None:
        self._step = step
        self.device = step.device
        self.tokens = step.tokens
        # One eager step first: lazily made state (workspaces, handles) must not be captured.
        step.reset()
        step.submit()
        stream = torch.Stream(step.device)
        self._graph = torch.accelerator.Graph()
        torch.accelerator.synchronize(step.device)
        with stream, self._graph:
            step.submit()
        torch.accelerator.synchronize(step.device)
        self.submit = self._graph.replay  # bound once: the lean path is one call

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Run the prompts and sample each row's first token; see ``DecodeStep.prefill``."""
        self._step.prefill(prompts)

    @property
    def room(self) -> int:
        """Steps that fit into the context after the last prefill."""
        return self._step.room


def prepare(step: DecodeStep) -> DecodeStep | GraphStep:
    """The fastest way to submit this step on its device: a graph, or the step itself on the CPU."""
    return step if step.device.type == "cpu" else GraphStep(step)
