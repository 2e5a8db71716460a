"""A step with inputs of fixed shapes, captured once: the cheapest way to run it in a worker.

One graph per step in flight, and inside it the copies of the inputs to the device and of the
results back. In a worker of ``AsyncExecutor`` such a step is received, submitted and answered by
native code (csrc/torch/step_port.h); Python runs for ``prepare`` alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_ALIGNMENT = 64  # bytes between the beginnings of two tensors


@dataclass(frozen=True)
class PackedLayout:
    """How tensors lie one behind the other in a run of bytes.

    Attributes:
        parts: each tensor's first byte, dtype and shape.
        size: of all, in bytes.
    """

    parts: tuple[tuple[int, torch.dtype, tuple[int, ...]], ...]
    size: int

    @staticmethod
    def of(tensors: Sequence[torch.Tensor]) -> PackedLayout:
        """The layout for tensors like these."""
        parts = []
        end = 0
        for tensor in tensors:
            parts.append((end, tensor.dtype, tuple(tensor.shape)))
            end += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        return PackedLayout(tuple(parts), max(end, _ALIGNMENT))

    def views(self, data: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors in ``data``, uint8 ``[size]`` or, of several, uint8 ``[n, size]``."""
        found = []
        for start, dtype, shape in self.parts:
            part = data[..., start : start + dtype.itemsize * math.prod(shape)]
            found.append(part.view(dtype).view((*data.shape[:-1], *shape)))
        return tuple(found)

    def pack(self, values: torch.Tensor | Sequence[torch.Tensor]) -> bytes:
        """The bytes of these tensors, which are on the host.

        Raises:
            TypeError: not a sequence of tensors on the host.
            ValueError: their number, a dtype or a shape is another one.
        """
        values = (values,) if isinstance(values, torch.Tensor) else tuple(values)
        if len(values) != len(self.parts):
            raise ValueError(
                f"the step was captured with {len(self.parts)} input(s), and {len(values)} came"
            )
        data = bytearray(self.size)
        for number, (value, (start, dtype, shape)) in enumerate(
            zip(values, self.parts, strict=True)
        ):
            if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
                raise TypeError(f"input {number} of a captured step must be a tensor on the host")
            if value.dtype != dtype or tuple(value.shape) != shape:
                raise ValueError(
                    f"input {number} is {value.dtype} {list(value.shape)}, and the step was "
                    f"captured with {dtype} {list(shape)}; capture one step per shape, or pad"
                )
            flat = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            data[start : start + flat.nbytes] = flat.data
        return bytes(data)


class CapturedStep:
    """What ``load`` of an ``AsyncExecutor`` returns for a step with fixed shapes.

    Args:
        function: the step, called with a tensor on the device for each input, in order. Returns a
            tensor or a tuple of tensors on the device. It must not wait for the device, and what it
            keeps from step to step it writes in place.
        inputs: one tensor like each input, in dtype and shape; anything to hold, on the host.
        prepare: called on the host before each step is submitted, with its inputs as tensors in
            pinned memory, which it may write to. Not called for the captures.
        reset: called after the captures, which run the function once: sets what the function keeps
            from step to step to what it should be before the first step.

    Where the device is not gapless, the step runs by ``Pipeline`` with the same results.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[torch.Tensor] = (),
        *,
        prepare: Callable[..., object] | None = None,
        reset: Callable[[], object] | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"the step must be a function, got {type(function).__name__}")
        if not all(isinstance(each, torch.Tensor) and each.device.type == "cpu" for each in inputs):
            raise TypeError("the inputs of a captured step are described by tensors on the host")
        self.function = function
        self.prepare = prepare
        self.reset = reset
        self.inputs = tuple(each.detach().contiguous() for each in inputs)

    def capture(self, device: torch.device, slots: int) -> CapturedSlots:
        """Capture the step once per slot on the device's current stream.

        The function is called ``slots + 1`` times, once of them eagerly.

        Raises:
            RuntimeError: the step waits for the host.
            TypeError: the step returned something else than tensors on the device.
        """
        return CapturedSlots(self, device, slots)

    def as_function(self) -> Callable[[Any], Any]:
        """The step as a function of one input, for ``Pipeline``: a sequence of tensors."""

        def step(values: Any) -> Any:
            values = (values,) if isinstance(values, torch.Tensor) else tuple(values or ())
            results = _as_tuple(self.function(*values))
            return results[0] if len(results) == 1 else results

        return step

    def as_prepare(self) -> Callable[[Any], Any] | None:
        """``prepare`` as ``Pipeline`` calls it."""
        prepare = self.prepare
        if prepare is None:
            return None

        def prepared(values: Any) -> Any:
            values = (values,) if isinstance(values, torch.Tensor) else tuple(values or ())
            values = tuple(each.clone() for each in values)
            prepare(*values)
            return values

        return prepared


class CapturedSlots:
    """Graphs of a step, one per step in flight, each with pinned memory of its own.

    Attributes:
        graphs: one per slot.
        inputs: uint8 ``[size]`` in pinned memory, one per slot.
        results: the same of the results.
        input_layout, result_layout: what lies where in them.
    """

    def __init__(self, step: CapturedStep, device: torch.device, slots: int) -> None:
        self.input_layout = PackedLayout.of(step.inputs)
        self.inputs = [self._pinned(self.input_layout.size) for _ in range(slots)]
        on_device = torch.empty(self.input_layout.size, dtype=torch.uint8, device=device)
        arguments = self.input_layout.views(on_device)
        for buffer in self.inputs:
            for view, example in zip(self.input_layout.views(buffer), step.inputs, strict=True):
                view.copy_(example)
        on_device.copy_(self.inputs[0])
        # Eagerly first: lazily made state must not be captured, and the results' shapes are learnt.
        results = _as_tuple(step.function(*arguments))
        for result in results:
            where = getattr(result, "device", type(result).__name__)
            if where != device:
                raise TypeError(
                    f"a captured step returns tensors on {device}; this one returned {where}"
                )
        self.result_layout = PackedLayout.of(results)
        self.results = [self._pinned(self.result_layout.size) for _ in range(slots)]
        from gapless.device import Graph

        stream = torch.Stream(device)
        pool: tuple[int, int] | None = None
        self.graphs = []
        for sent, returned in zip(self.inputs, self.results, strict=True):
            graph = Graph(pool=pool)
            torch.accelerator.synchronize(device)
            with stream, graph:
                on_device.copy_(sent, non_blocking=True)
                results = _as_tuple(step.function(*arguments))
                for view, result in zip(self.result_layout.views(returned), results, strict=True):
                    view.copy_(result, non_blocking=True)
            pool = graph.pool()
            self.graphs.append(graph)
        if step.reset is not None:
            step.reset()
        torch.accelerator.synchronize(device)

    @staticmethod
    def _pinned(size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8).pin_memory()


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)
