"""Random numbers as a function of a seed and a position, in tensor operators.

A generator that is advanced by whoever draws gives a sequence other numbers when another one joins
its batch. These do not, and nothing needs to be kept: the same (seed, position) is the same number
on every device and at every depth.
"""

from __future__ import annotations

import torch

# SplitMix64 (Steele, Lea, Flood 2014), with its constants as signed numbers.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Numbers in [0, 1), evenly distributed.

    Args:
        seeds: int64, any shape.
        positions: int64 of the same shape: which number of the seed's.

    Returns:
        float64 of the same shape.
    """
    # Seeds that follow each other would share their numbers, one place apart, were they not mixed.
    bits = _mix(_mix(seeds) + (positions + 1) * _GAMMA)
    return _shift_right(bits, 11).to(torch.float64) * 2.0**-53


def _mix(bits: torch.Tensor) -> torch.Tensor:
    bits = (bits ^ _shift_right(bits, 30)) * _FIRST
    bits = (bits ^ _shift_right(bits, 27)) * _SECOND
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: torch.Tensor, places: int) -> torch.Tensor:
    # torch has no unsigned shift: the sign's copies are cut off.
    return (bits >> places) & ((1 << (64 - places)) - 1)
