"""Shapes and dtypes of what a program's tensors will be, found on PyTorch's ``meta`` device."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tests.random import operators


@dataclass(frozen=True)
class Shape:
    """Sizes, dtype and the layout, as far as operators and views depend on it."""

    sizes: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None  # None: contiguous

    def as_meta(self) -> torch.Tensor:
        """A tensor of this shape without values."""
        strides = self.strides
        if strides is None:
            return torch.empty(self.sizes, dtype=operators.DTYPES[self.dtype], device="meta")
        return torch.empty_strided(
            self.sizes, strides, dtype=operators.DTYPES[self.dtype], device="meta"
        )

    @staticmethod
    def of(tensor: torch.Tensor) -> "Shape":
        """The shape of a tensor."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        return Shape(
            tuple(tensor.shape), dtype, None if tensor.is_contiguous() else tensor.stride()
        )


@cache
def _result(operator: Callable[..., torch.Tensor], shapes: tuple[Shape, ...]) -> Shape:
    return Shape.of(operator(*[shape.as_meta() for shape in shapes]))


def result_of(operator: Any, shapes: list[Shape]) -> Shape:
    """What the operator makes of operands of these shapes."""
    return _result(operator, tuple(shapes))


@cache
def view_of(name: str, shape: Shape) -> tuple[Shape, bool]:
    """What the view looks like, and whether it may be written to."""
    look, writable = operators.VIEWS[name]
    return Shape.of(look(shape.as_meta())), writable
