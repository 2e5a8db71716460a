"""The programs of one graph, one for each set of shapes that it was called with."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch
from torch import fx

from gapless.compile import compiler_thread, statistics
from gapless.compile.compiler_process import make_elsewhere, pickled_request
from gapless.compile.host_graph import DEVICE, reason_against, without_device
from gapless.compile.mode import CompileMode, compile_mode
from gapless.compile.program import CompiledProgram, make_recipe

SHAPES_LIMIT = 64
BEING_COMPILED = "its program is being compiled"


class StaticPrograms:
    """Calls the program for the arguments' shapes; makes it first if there is none.

    Where there can be none, or not yet, the graph runs operator by operator, which is counted by
    its reason.

    Args:
        graph_module: as AOTAutograd gives it.
        name: what the timeline calls its programs.
        shapes_limit: so many programs at most; further shapes run operator by operator.
        mode: what to do where the program is not there; by default ``GAPLESS_COMPILE``, read at
            each such call.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        name: str,
        shapes_limit: int = SHAPES_LIMIT,
        mode: CompileMode | None = None,
    ) -> None:
        self._graph_module = graph_module
        self._name = name
        self._limit = shapes_limit
        self._mode = mode
        self._reason = reason_against(graph_module)
        self._body, self._constants = without_device(graph_module)
        self._programs: dict[tuple[Any, ...], CompiledProgram] = {}
        self._making: dict[tuple[Any, ...], Future[CompiledProgram]] = {}

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """Run on the device's current stream; never waits for it.

        Raises:
            Exception: the program could not be made.
        """
        if self._reason is not None:
            return self._run_eagerly(arguments, self._reason)
        device = _device_of(arguments)
        if device is None:
            return self._run_eagerly(arguments, "no argument is on the device")
        if any(map(_is_large_on_host, arguments)):
            return self._run_eagerly(arguments, "an argument of several values is on the host")
        key = tuple(map(_layout_key, arguments))
        program = self._programs.get(key)
        if program is not None:
            return program(arguments, device)
        mode = self._mode or compile_mode()
        if key not in self._making:
            if len(self._programs) + len(self._making) >= self._limit:
                return self._run_eagerly(arguments, f"more than {self._limit} shapes")
            self._making[key] = self._begin(arguments, mode, device)
        making = self._making[key]
        if mode is CompileMode.BACKGROUND and not making.done():
            compiler_thread.use(making)
            statistics.count_eager(BEING_COMPILED)
            return self._graph_module(*arguments)
        del self._making[key]  # an error is told once, and the next call tries again
        program = self._programs[key] = making.result()
        return program(arguments, device)

    def _begin(
        self, arguments: Sequence[Any], mode: CompileMode, device: torch.device
    ) -> Future[CompiledProgram]:
        # Only the layouts: the caller's tensors are not to live until a compiler has time.
        layouts = [_without_values(value) for value in arguments]
        # The graph would copy those of the host anew in each call.
        constants = [
            each.to(device) if _is_large_on_host(each) else each for each in self._constants
        ]
        name = self._name
        constant_layouts = [_without_values(value) for value in constants]
        request = None
        if mode is CompileMode.BACKGROUND:
            request = pickled_request(self._body, layouts, constant_layouts, name)

        def make() -> CompiledProgram:
            if request is not None:
                recipe = make_elsewhere(request)
            else:
                may_compile = mode is not CompileMode.NEVER
                recipe = make_recipe(self._body, layouts, constant_layouts, name, may_compile)
            return CompiledProgram(recipe, constants, name)

        future = compiler_thread.begin(make)
        if mode is CompileMode.BACKGROUND:
            compiler_thread.tell_failure(future)
        if mode is CompileMode.BACKGROUND and request is None:
            statistics.count_waited()
            self._tell_once("cannot be sent to another process, and is compiled while it waits")
            with suppress(Exception):  # told where it is used
                future.result()
        return future

    def _run_eagerly(self, arguments: Sequence[Any], reason: str) -> Any:
        statistics.count_eager(reason)
        self._tell_once(f"runs operator by operator: {reason}")
        return self._graph_module(*arguments)

    def _tell_once(self, text: str) -> None:
        if text not in _told:
            _told.add(text)
            warnings.warn(f"gapless: a graph ({self._name}) {text}", stacklevel=4)


def _without_values(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


_told: set[str] = set()


def _is_large_on_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cpu and value.numel() != 1


def _layout_key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.device.type, value.is_conj())
    return value


def _device_of(arguments: Sequence[Any]) -> torch.device | None:
    for value in arguments:
        if isinstance(value, torch.Tensor) and value.device.type == DEVICE:
            return value.device
    return None
