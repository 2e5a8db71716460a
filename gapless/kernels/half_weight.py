"""A linear layer's weight in float16, multiplied in float32."""

from __future__ import annotations

import math

import torch

_FLOAT16_EXPONENT = 15  # of the power of two below which its numbers are scaled
_PIECE = 1 << 15  # numbers
_GREATEST_EXPONENT = 100  # float32 has its inverse, and no weights are smaller
# Half of the distance from 1 to the next number in float32.
_FLOAT32_ROUNDOFF = 2.0**-24


class HalfWeight:
    """In float16, in panels of outputs as gapless's kernel reads them, which computes in float32.

    A row's result does not depend on the rows beside it.

    Args:
        weight: float32 or shorter.
        exponent: the weight lies multiplied by 2^exponent, so that float16 has its small numbers.
        device: where it is to lie; by default where it is.
    """

    def __init__(
        self, weight: torch.Tensor, exponent: int = 0, device: torch.device | None = None
    ) -> None:
        self.outputs, self.inputs = weight.shape
        self.bytes = 0  # a tensor of the device
        self._scale = 2.0**-exponent
        panels = torch.ops.gapless.half_weight_pack(weight.cpu(), 2.0**exponent)
        self._panels = panels.to(device or weight.device)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """``x @ weight.T + bias`` for x of shape [..., inputs]; the result has x's dtype."""
        out = torch.empty((*x.shape[:-1], self.outputs), dtype=x.dtype, device=x.device)
        torch.ops.gapless.half_weight_linear(
            out.view(-1, self.outputs), x.reshape(-1, self.inputs), self._panels, self._scale, bias
        )
        return out


def float16_exponent(weight: torch.Tensor) -> int | None:
    """The e with which float16 changes weight times 2^e by less than float32's rounding of its
    largest number: 0 if possible. None: there is none, since the numbers have too many digits.
    """
    # In pieces that stay in a processor's cache.
    pieces = torch.split(weight.detach().cpu().reshape(-1), _PIECE)
    largests = [_largest(piece) for piece in pieces]
    if not all(map(math.isfinite, largests)):
        return None
    largest = max(largests)
    # Those multiplied so that the largest is just below float16's: the small ones gain most.
    greatest = min(_FLOAT16_EXPONENT - math.frexp(largest)[1], _GREATEST_EXPONENT)
    for exponent in (0, greatest):
        scale = 2.0**exponent
        if largest * scale > torch.finfo(torch.float16).max:
            continue
        most = _FLOAT32_ROUNDOFF * largest * scale
        if all(_float16_error(piece, scale) <= most for piece in pieces):
            return exponent
    return None


def _float16_error(values: torch.Tensor, scale: float) -> float:
    scaled = values.float() if scale == 1 else values.float() * scale
    return _largest(scaled.half().float().sub_(scaled))


def _largest(values: torch.Tensor) -> float:
    least, most = torch.aminmax(values)
    return max(-float(least), float(most))
