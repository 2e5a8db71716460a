"""Where two runs over the same prompts first give different tokens, and how close the call was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Divergence:
    """The earliest position at which a row differs from the reference.

    Attributes:
        row: which row.
        position: index among the new tokens; 0 is the prefill's.
        expected: the reference's token there; None if the reference had ended.
        found: the other run's token there; None if it had ended.
        margin: the reference's largest logit minus its second largest at this position. Where it
            is of the size of rounding errors, either token is right.
    """

    row: int
    position: int
    expected: int | None
    found: int | None
    margin: float


def first_divergence(
    reference: Sequence[Sequence[int]],
    other: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    model: Any,
) -> Divergence | None:
    """Compare two runs; None if every token is the same.

    Args:
        reference: each row's tokens in the reference run.
        other: each row's tokens in the run in question.
        prompts: each row's prompt.
        model: the reference model; run once more, only if there is a divergence, for the margin.
    """
    found: list[tuple[int, int]] = []
    for row, (expected, actual) in enumerate(zip(reference, other, strict=True)):
        same = len(_common_prefix(expected, actual))
        if same < max(len(expected), len(actual)):
            found.append((same, row))
    if not found:
        return None
    position, row = min(found)
    context = [*prompts[row], *reference[row][:position]]
    return Divergence(
        row=row,
        position=position,
        expected=_at(reference[row], position),
        found=_at(other[row], position),
        margin=_margin(model, context),
    )


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> list[int]:
    common = []
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        common.append(a)
    return common


def _at(tokens: Sequence[int], position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None


def _margin(model: Any, context: list[int]) -> float:
    with torch.inference_mode():
        ids = torch.tensor([context]).to(model.device)
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
        largest, second = torch.topk(logits.float(), 2).values.tolist()
    return float(largest - second)
