"""A program and how a call of the graph becomes a launch of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from gapless import _C
from gapless.compile import statistics
from gapless.compile.artifact_cache import obtain_artifact
from gapless.compile.host_graph import Result, trace_on_host


@dataclass(frozen=True)
class Recipe:
    """What is known of a program once it lies in the artifact cache.

    Attributes:
        path: of the shared object.
        key: the artifact's name.
        was_cached: nothing had to be compiled.
        written: for each operand whether it is written to; results come last.
        results: what the graph returns.
    """

    path: Path
    key: str
    was_cached: bool
    written: tuple[bool, ...]
    results: tuple[Result, ...]


def make_recipe(
    body: fx.GraphModule,
    arguments: Sequence[Any],
    constants: Sequence[torch.Tensor],
    name: str,
    may_compile: bool,
) -> Recipe:
    """Trace a graph for the arguments' layouts, and find its program or compile it.

    Args:
        body: the graph, see ``host_graph.without_device``.
        arguments: tensors, of which only the layouts matter, and other values.
        constants: the same of the graph's constants.
        name: what progress calls the program.
        may_compile: whether to compile what the cache does not hold.

    Raises:
        ProgramMissing: it is not there and may not be compiled.
        CacheError: the cache cannot be used.
    """
    graph = trace_on_host(body, arguments, constants)
    path, key, was_cached = obtain_artifact(graph, may_compile, name)
    return Recipe(path, key, was_cached, graph.written, graph.results)


class CompiledProgram:
    """Launches the program of one graph at fixed shapes.

    Args:
        recipe: of the program.
        constants: the graph's, on the device.
        name: what the timeline calls it.
    """

    def __init__(self, recipe: Recipe, constants: Sequence[torch.Tensor], name: str) -> None:
        statistics.count_program(was_cached=recipe.was_cached)
        self.key = recipe.key
        self._program = _C.Program(str(recipe.path), f"program {name} {recipe.key[:8]}")
        self._constants = list(constants)
        self._written = list(recipe.written)
        self._results = recipe.results
        self._fresh = [r.layout for r in recipe.results if r.kind == "tensor" and r.layout]

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
