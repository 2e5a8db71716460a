"""How many positions a generation needs, decided before anything is allocated or run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gapless.errors import UsageError


@dataclass(frozen=True)
class ContextPlan:
    """Positions per row, and how many new tokens fit into them after the longest prompt."""

    context: int
    max_new_tokens: int


def context_limit(config: Any) -> int | None:
    """The most positions that the model was made for; None where its config does not say."""
    limit = getattr(config, "max_position_embeddings", None)
    return int(limit) if limit else None


def require_context(config: Any, context: int) -> None:
    """Check a context against what the model was made for.

    Raises:
        UsageError: it is longer.
    """
    limit = context_limit(config)
    if limit is not None and context > limit:
        raise UsageError(
            f"a context of {context} positions was asked for and the model has {limit}; "
            f"use --context {limit} or less"
        )


def plan_context(
    config: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    context: int | None = None,
) -> ContextPlan:
    """Choose the smallest context that serves, or check the one that was asked for.

    Where fewer new tokens fit than were asked for, the plan has the number that fits.

    Raises:
        UsageError: a prompt is longer than the context, the context is longer than the model's,
            or no new token was asked for.
    """
    if max_new_tokens < 1:
        raise UsageError(f"{max_new_tokens} new tokens were asked for; ask for at least 1")
    longest = max(len(prompt) for prompt in prompts)
    # The last token is read by the host only, so it needs no position.
    wanted = longest + max_new_tokens - 1
    limit = context_limit(config)
    if context is None:
        context = wanted if limit is None else min(wanted, limit)
        remedy = "shorten it or use a model with a longer context"
    else:
        require_context(config, context)
        remedy = "shorten it or raise the context (--context)"
    if longest > context:
        raise UsageError(
            f"the prompt has {longest} tokens and the context has {context} positions; {remedy}"
        )
    return ContextPlan(context, min(max_new_tokens, context - longest + 1))
