"""The programs of one graph, one for each set of shapes that it was called with."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx

from gapless.compile import statistics
from gapless.compile.host_graph import DEVICE, host_graph, reason_against
from gapless.compile.program import CompiledProgram

SHAPES_LIMIT = 64


class StaticPrograms:
    """Calls the program for the arguments' shapes; makes it first if there is none.

    Where there can be none, the graph runs operator by operator, which is counted by its reason.

    Args:
        graph_module: as AOTAutograd gives it.
        name: what the timeline calls its programs.
        shapes_limit: so many programs at most; further shapes run operator by operator.
    """

    def __init__(
        self, graph_module: fx.GraphModule, name: str, shapes_limit: int = SHAPES_LIMIT
    ) -> None:
        self._graph_module = graph_module
        self._name = name
        self._limit = shapes_limit
        self._reason = reason_against(graph_module)
        self._programs: dict[tuple[Any, ...], CompiledProgram] = {}

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """Run on the device's current stream; never waits for it."""
        if self._reason is not None:
            return self._run_eagerly(arguments, self._reason)
        device = _device_of(arguments)
        if device is None:
            return self._run_eagerly(arguments, "no argument is on the device")
        key = tuple(map(_layout_key, arguments))
        program = self._programs.get(key)
        if program is None:
            if len(self._programs) >= self._limit:
                return self._run_eagerly(arguments, f"more than {self._limit} shapes")
            program = _compiler_thread.submit(self._make, arguments).result()
            self._programs[key] = program
        return program(arguments, device)

    def _make(self, arguments: Sequence[Any]) -> CompiledProgram:
        return CompiledProgram(host_graph(self._graph_module, arguments), self._name)

    def _run_eagerly(self, arguments: Sequence[Any], reason: str) -> Any:
        statistics.count_eager(reason)
        if reason not in _told:
            _told.add(reason)
            warnings.warn(
                f"gapless: a graph ({self._name}) runs operator by operator: {reason}",
                stacklevel=2,
            )
        return self._graph_module(*arguments)


_told: set[str] = set()
# A thread of its own: inside a compiled function the calling thread's dispatcher is set up for
# running graphs, and tracing needs it as it was.
_compiler_thread = ThreadPoolExecutor(1, thread_name_prefix="gapless-compile")


def _layout_key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.device.type, value.is_conj())
    return value


def _device_of(arguments: Sequence[Any]) -> torch.device | None:
    for value in arguments:
        if isinstance(value, torch.Tensor) and value.device.type == DEVICE:
            return value.device
    return None
