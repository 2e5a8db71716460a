"""Outputs that overlap inputs, or themselves, are refused or right, as on the CPU."""

from collections.abc import Callable

import pytest
import torch

CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "out= shifted by one": lambda x: torch.add(x[:5], 1, out=x[1:]),
    "in place, shifted by one": lambda x: x[1:].add_(x[:5]),
    "in place on an expanded tensor": lambda x: x[:1].expand(4).add_(1),
    "a copy shifted by one": lambda x: x[1:].copy_(x[:5]),
    "a copy to an expanded tensor": lambda x: x[:1].expand(4).copy_(x[:4]),
    "gather to its own input": lambda x: torch.gather(x, 0, _ascending(x), out=x),
    "a copy to itself": lambda x: x.copy_(x),
    "the same memory as input and output": lambda x: torch.cumsum(x, 0, out=x),
    "one view times another": lambda x: x.mul_(x[2:3].expand(6)),
    "the same memory in two shapes": lambda x: x.view(2, 3).add_(x.view(3, 2).view(2, 3)),
}


def _ascending(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(x), device=x.device)


def outcome(case: Callable[[torch.Tensor], torch.Tensor], device: str) -> list[float] | str:
    x = torch.arange(1.0, 7.0, device=device)
    try:
        case(x)
        torch.accelerator.synchronize()
    except RuntimeError as error:
        text = str(error)
        return text[text.index("unsupported operation") :].splitlines()[0]
    return x.tolist()


@pytest.mark.parametrize("name", CASES)
def test_overlap(name):
    assert outcome(CASES[name], "gapless") == outcome(CASES[name], "cpu")
