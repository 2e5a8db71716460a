"""A program and how a call of the graph becomes a launch of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gapless import _C
from gapless.compile import statistics
from gapless.compile.artifact_cache import obtain_artifact
from gapless.compile.host_graph import HostGraph


class CompiledProgram:
    """Launches the program of one graph at fixed shapes.

    Args:
        graph: what to compile, or to find in the artifact cache.
        name: what the timeline calls it.
    """

    def __init__(self, graph: HostGraph, name: str) -> None:
        path, key, was_cached = obtain_artifact(graph)
        statistics.count_program(was_cached=was_cached)
        self.key = key
        self._program = _C.Program(str(path), f"program {name} {key[:8]}")
        self._constants = list(graph.constants)
        self._written = list(graph.written)
        self._results = graph.results
        self._fresh = [r.layout for r in graph.results if r.kind == "tensor" and r.layout]

    def __call__(self, arguments: Sequence[Any], device: torch.device) -> list[Any]:
        """Queue a run; returns what the graph returns, on the device."""
        operands = [value for value in arguments if isinstance(value, torch.Tensor)]
        operands += self._constants
        outputs = [
            torch.empty_strided(each.size, each.stride, dtype=each.dtype, device=device)
            for each in self._fresh
        ]
        self._program.launch(operands + outputs, self._written)
        statistics.count_launch()
        fresh = iter(outputs)
        returned: list[Any] = []
        for result in self._results:
            if result.kind == "tensor":
                returned.append(next(fresh))
            elif result.kind == "operand":
                returned.append(operands[result.index])
            else:
                returned.append(result.value)
        return returned
