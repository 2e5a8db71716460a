"""Are two results the same, bit for bit?"""

import math
from typing import Any

import torch


class Mismatch(AssertionError):
    """The device's result is not the CPU's."""


def compare(actual: Any, expected: Any, *, values: bool = True, where: str = "result") -> None:
    """Raise :class:`Mismatch` unless both trees agree in structure, shape, dtype and values.

    Every NaN equals every other. With ``values=False`` (random numbers) only what numbers are
    there at all is compared: finite ones and their mean.
    """
    if isinstance(expected, torch.Tensor):
        if not isinstance(actual, torch.Tensor):
            raise Mismatch(f"{where}: {type(actual).__name__} instead of a tensor")
        _compare_tensors(actual, expected, values, where)
    elif isinstance(expected, dict):
        for key in expected:
            compare(actual[key], expected[key], values=values, where=f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        if not isinstance(actual, (list, tuple)) or len(actual) != len(expected):
            raise Mismatch(f"{where}: another number of results")
        for i, pair in enumerate(zip(actual, expected, strict=True)):
            compare(*pair, values=values, where=f"{where}[{i}]")
    elif isinstance(expected, torch.device):
        pass
    elif values and actual != expected and not (_is_nan(actual) and _is_nan(expected)):
        raise Mismatch(f"{where}: {actual!r} instead of {expected!r}")


def _is_nan(value: Any) -> bool:
    if isinstance(value, complex):
        return math.isnan(value.real) or math.isnan(value.imag)
    return isinstance(value, float) and math.isnan(value)


def _compare_tensors(
    actual: torch.Tensor, expected: torch.Tensor, values: bool, where: str
) -> None:
    for what in ("shape", "dtype", "layout"):
        mine, theirs = getattr(actual, what), getattr(expected, what)
        if mine != theirs:
            raise Mismatch(f"{where}: {what} {mine} instead of {theirs}")
    if expected.layout != torch.strided or expected.is_quantized:
        raise Mismatch(f"{where}: a {expected.layout} result is compared with nothing")
    mine = actual.detach().cpu().resolve_conj().resolve_neg().contiguous()
    theirs = expected.detach().resolve_conj().resolve_neg().contiguous()
    if values:
        if not _same_bits(mine, theirs):
            raise Mismatch(f"{where}: {_difference(mine, theirs)}")
    else:
        _compare_distribution(mine, theirs, where)


def _same_bits(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    if mine.is_complex():
        return _same_bits(torch.view_as_real(mine), torch.view_as_real(theirs))
    if not mine.is_floating_point():
        return torch.equal(mine, theirs)
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[mine.element_size()]
    same = mine.view(size) == theirs.view(size)
    both_nan = mine.double().isnan() & theirs.double().isnan()
    return bool((same | both_nan).all())


def _difference(mine: torch.Tensor, theirs: torch.Tensor) -> str:
    wide = torch.complex128 if mine.is_complex() else torch.float64
    a, b = mine.to(wide), theirs.to(wide)
    differs = ((a != b) & ~(a.isnan() & b.isnan())).flatten()
    if not differs.any():
        return "zeros of another sign"
    at = int(differs.to(torch.uint8).argmax())
    return (
        f"{int(differs.sum())} of {mine.numel()} values differ, "
        f"first {mine.flatten()[at].item()} instead of {theirs.flatten()[at].item()}"
    )


def _compare_distribution(mine: torch.Tensor, theirs: torch.Tensor, where: str) -> None:
    if not mine.is_floating_point() or mine.numel() < 64:
        return
    a, b = mine.double().flatten(), theirs.double().flatten()
    if not (a.isfinite().all() and b.isfinite().all()):
        return
    # Dropout may draw one number for a whole channel, which are the dimensions after two.
    draws = math.prod(mine.shape[:2]) if mine.dim() > 2 else mine.numel()
    spread = 8 * math.sqrt(float(a.var() + b.var()) / draws) + 1e-6
    if abs(float(a.mean() - b.mean())) > spread:
        raise Mismatch(f"{where}: mean {a.mean():.4g} instead of {b.mean():.4g} of random numbers")
