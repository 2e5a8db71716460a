"""How a decode step is submitted: replayed from a graph, or call by call.

The graph is ``torch.accelerator.Graph``, so any accelerator that has one is served; where there is
none (the CPU) the same step runs eagerly and gives the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from gapless.pipeline.decode_step import DecodeStep
from gapless.pipeline.token_ring import TokenRing


class StepProgram(Protocol):
    """What the decode loop drives: submits steps and never waits for them."""

    @property
    def device(self) -> torch.device:
        """Where the steps run."""
        ...

    @property
    def ring(self) -> TokenRing:
        """Where the tokens of each step arrive on the host."""
        ...

    @property
    def room(self) -> int:
        """Steps that fit into the context after the last prefill."""
        ...

    def submit(self, samples: bool = False) -> None:
        """Submit one step, and the copy of its tokens into the ring."""
        ...


class EagerStep:
    """A decode step submitted operator by operator.

    Args:
        step: the step.
        depth: the greatest depth of a loop that is to drive it.
    """

    def __init__(self, step: DecodeStep, depth: int = 2) -> None:
        self._step = step
        self.device = step.device
        self.ring = TokenRing(step.tokens, depth + 1)

    @property
    def room(self) -> int:
        """Steps that fit into the context after the last prefill."""
        return self._step.room

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Run the prompts and sample each row's first token; see ``DecodeStep.prefill``."""
        self._step.prefill(prompts)

    def submit(self, samples: bool = False) -> None:
        """Submit one step, and the copy of its tokens into the ring; see ``DecodeStep.submit``."""
        self.ring.require_slot()
        self._step.submit(samples)
        self.ring.push()


class GraphStep:
    """A decode step captured once and replayed with one submit.

    There is one graph for each slot of the ring, because the copy of the tokens into the slot is
    part of it: a copy submitted on its own costs the host twice what the replay does. The graphs
    share their memory, as only one of them runs at a time. A step that samples has as many again.

    The step's state is disturbed by the capture: prefill after it.

    Args:
        step: the step.
        depth: the greatest depth of a loop that is to drive it.

    Raises:
        RuntimeError: the device has no graphs, or the step waits for the host while captured.
    """

    def __init__(self, step: DecodeStep, depth: int = 2) -> None:
        self._step = step
        self.device = step.device
        self.ring = TokenRing(step.tokens, depth + 1)
        self._claim = self.ring.claim
        self._graphs: list[Any] = []  # they have to live as long as their replays are called
        self._replays = self._capture(samples=False)
        self._sampling_replays = [] if step.sampler is None else self._capture(samples=True)

    def _capture(self, samples: bool) -> list[Callable[[], None]]:
        step = self._step
        # One eager step first: lazily made state (workspaces, handles) must not be captured.
        step.reset()
        step.submit(samples)
        stream = torch.Stream(step.device)
        graph_class = _graph_class(step.device)
        replays = []
        for buffer, event in zip(self.ring.buffers, self.ring.events, strict=True):
            pool = self._graphs[-1].pool() if self._graphs else None
            graph = graph_class(pool=pool)
            torch.accelerator.synchronize(step.device)
            with stream, graph:
                step.submit(samples)
                buffer.copy_(step.tokens, non_blocking=True)
            self._graphs.append(graph)
            replays.append(_replay_and_record(graph, event))
        torch.accelerator.synchronize(step.device)
        return replays

    @property
    def room(self) -> int:
        """Steps that fit into the context after the last prefill."""
        return self._step.room

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Run the prompts and sample each row's first token; see ``DecodeStep.prefill``."""
        self._step.prefill(prompts)

    def submit(self, samples: bool = False) -> None:
        """Submit one step, and the copy of its tokens into the ring; see ``DecodeStep.submit``."""
        replays = self._sampling_replays if samples else self._replays
        replays[self._claim()]()


def _graph_class(device: torch.device) -> Any:
    # Our own class is the same graph with less between the call and the replay.
    if device.type == "gapless":
        from gapless.device import Graph

        return Graph
    return torch.accelerator.Graph


def _replay_and_record(graph: Any, event: torch.Event) -> Callable[[], None]:
    """Submit a replay and record the event after it, in one call where the graph offers that."""
    if hasattr(graph, "bind_replay"):
        bound: Callable[[], None] = graph.bind_replay(event)
        return bound

    def replay() -> None:
        graph.replay()
        event.record()

    return replay


def prepare(step: DecodeStep, depth: int = 2) -> EagerStep | GraphStep:
    """The fastest way to submit this step on its device: graphs, or call by call on the CPU."""
    return EagerStep(step, depth) if step.device.type == "cpu" else GraphStep(step, depth)
