"""What instructions compute: the same function runs on the device's tensors and on the CPU's.

All are exact, or do the same arithmetic in the same order whatever the number of threads, so that
results can be compared bit for bit. Integer overflow wraps.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """Whole numbers; whatever is none becomes one in the same way everywhere."""
    if not tensor.is_floating_point():
        return tensor.to(torch.int64)
    return tensor.nan_to_num(0, 0, 0).clamp(-1e9, 1e9).to(torch.int64)


def product(vector: Tensor) -> Tensor:
    """Slow for its size: a matrix product of integers."""
    matrix = torch.outer(vector, vector)
    return matrix.mm(matrix)


# One operand, any shape, to a result of its own shape or another, in memory of its own.
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "negative": lambda a: -a,
    "plus_three": lambda a: a + 3,
    "half": lambda a: a.div(2, rounding_mode="floor"),
    "clone": lambda a: a.clone(),
    "contiguous": lambda a: a.clone(memory_format=torch.contiguous_format),
    "running_sum": lambda a: whole(a).cumsum(0),
    "total": lambda a: whole(a).sum().reshape(1),
    "largest": lambda a: a.amax(0, keepdim=True),
    "flipped": lambda a: a.flip(0),
    "rolled": lambda a: a.roll(1, 0),
    "sorted": lambda a: a.sort(dim=0, stable=True).values,
    "as_float": lambda a: a.to(torch.float32, copy=True),
    "as_int": lambda a: whole(a) + 1,
    "is_even": lambda a: a.remainder(2).eq(0).to(torch.int32),
    "split_and_joined": lambda a: torch.cat([*reversed(a.chunk(3, 0))]),
    "product": lambda a: product(whole(a).reshape(-1)[:32]),
}

# Two operands of the same shape.
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "times": lambda a, b: a * b,
    "maximum": lambda a, b: torch.maximum(a, b),
    "where": lambda a, b: torch.where(a > b, a, b * 2),
    "stacked": lambda a, b: torch.stack([a, b]).reshape(-1),
    "gathered": lambda a, b: a.reshape(-1)[whole(b).reshape(-1).remainder(a.numel())],
}

# In place, with the target alone.
UPDATE_ALONE: dict[str, Callable[[Tensor, torch.Generator | None], object]] = {
    "add_one_": lambda t, _: t.add_(1),
    "zero_": lambda t, _: t.zero_(),
    "double_": lambda t, _: t.mul_(2),
    "fill_": lambda t, _: t.fill_(7),
    "flip_into_": lambda t, _: t.copy_(t.flip(0)),
    "random_": lambda t, generator: t.random_(0, 1000, generator=generator),
}

# In place, with an operand of the same shape.
UPDATE_WITH: dict[str, Callable[[Tensor, Tensor], object]] = {
    "add_": lambda t, a: t.add_(a.to(t.dtype)),
    "copy_": lambda t, a: t.copy_(a),
    "mask_": lambda t, a: t.masked_fill_(a > 5, 1),
    "maximum_out": lambda t, a: torch.maximum(t, a.to(t.dtype), out=t),
}

# Views, and whether they may be written to: where two elements share memory they may not.
VIEWS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "upper_half": (lambda t: t[: (t.size(0) + 1) // 2], True),
    "but_first": (lambda t: t[1:] if t.size(0) > 1 else t[:], True),
    "but_last": (lambda t: t[:-1] if t.size(0) > 1 else t[:], True),
    "every_other": (lambda t: t[::2], True),
    "transposed": (lambda t: t.transpose(0, -1), True),
    "flat": (lambda t: t.view(-1) if t.is_contiguous() else t[:], True),
    "windows": (
        lambda t: (
            t.as_strided((max(1, t.size(0) - 3), 4), (1, 1), t.storage_offset())
            if t.dim() == 1 and t.is_contiguous() and t.size(0) > 4
            else t.unsqueeze(0).expand(2, *t.shape)
            if t.dim() < 3
            else t[:]
        ),
        False,
    ),
}

DTYPES = {"int64": torch.int64, "int32": torch.int32, "float32": torch.float32}


def counting(shape: tuple[int, ...], dtype: str, start: int, device: str = "cpu") -> Tensor:
    """``start``, ``start + 1`` ... in the given shape."""
    count = int(torch.Size(shape).numel())
    return torch.arange(start, start + count, dtype=DTYPES[dtype], device=device).reshape(shape)
