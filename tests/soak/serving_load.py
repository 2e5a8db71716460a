"""Clients that behave like people who chat: lengths that vary widely, and some who hang up.

Lengths of prompts and answers are drawn from log-normal distributions, the shape that published
traces of chat services have (many short ones, few long ones), with medians of 40 and 60 tokens,
sigma 0.9 and 0.8, cut at 200 and 128 so that two cores get through them.

Each question has been answered alone before, as long as any answer may be; an answer under load has
to be the beginning of that one. Two tokens whose logarithms of probability lie nearer than
``NEAR_TIE`` are what rounding chooses between, and rounding depends on who else is in the batch: a
difference that begins at such a place is counted apart.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from openai import AsyncOpenAI

MOST_PROMPT, MOST_ANSWER = 200, 128  # tokens
PROMPT_MEDIAN, PROMPT_SIGMA = 40.0, 0.9
ANSWER_MEDIAN, ANSWER_SIGMA = 60.0, 0.8
ABORTED_SHARE = 0.1
NEAR_TIE = 1e-3  # float32
PATIENCE_S = 300.0
_LOWEST_TOKEN = 100  # those below are special


@dataclass(frozen=True)
class Question:
    """A prompt, what it is answered alone, and by how much each token won over the second."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    margins: tuple[float, ...]


@dataclass
class Counts:
    """What the clients saw so far."""

    answered: int = 0
    aborted: int = 0
    tokens: int = 0
    near_ties: int = 0
    wrong: list[str] = field(default_factory=list)


def length(draw: random.Random, median: float, sigma: float, most: int) -> int:
    """A length in tokens."""
    return max(1, min(most, round(draw.lognormvariate(0.0, sigma) * median)))


async def answer_alone(
    client: AsyncOpenAI, model: str, vocabulary: int, count: int, draw: random.Random
) -> list[Question]:
    """Questions with the answers that they get while nobody else asks."""
    questions = []
    for _ in range(count):
        size = length(draw, PROMPT_MEDIAN, PROMPT_SIGMA, MOST_PROMPT)
        prompt = tuple(draw.randrange(_LOWEST_TOKEN, vocabulary) for _ in range(size))
        result: Any = await client.completions.create(
            model=model,
            prompt=list(prompt),
            max_tokens=MOST_ANSWER,
            temperature=0,
            logprobs=2,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        choice = result.choices[0]
        best = [sorted(top.values(), reverse=True) for top in choice.logprobs.top_logprobs]
        margins = tuple(pair[0] - pair[1] if len(pair) > 1 else 0.0 for pair in best)
        questions.append(Question(prompt, tuple(choice.token_ids), margins))
    return questions


async def ask_until(
    is_over: Callable[[], bool],
    client: AsyncOpenAI,
    model: str,
    questions: list[Question],
    draw: random.Random,
    counts: Counts,
) -> None:
    """One client: asks again and again, and compares."""
    while not is_over():
        question = draw.choice(questions)
        size = length(draw, ANSWER_MEDIAN, ANSWER_SIGMA, MOST_ANSWER)
        stop_after = draw.randrange(size) if draw.random() < ABORTED_SHARE else None
        try:
            async with asyncio.timeout(PATIENCE_S):
                tokens = await _ask(client, model, question.prompt, size, stop_after)
        except Exception as error:  # whatever a client may see is what is looked for
            counts.wrong.append(f"{type(error).__name__}: {error}")
            continue
        counts.tokens += len(tokens)
        if stop_after is None:
            counts.answered += 1
        else:
            counts.aborted += 1
        _compare(question, tokens, size if stop_after is None else len(tokens), counts)


async def _ask(
    client: AsyncOpenAI, model: str, prompt: tuple[int, ...], size: int, stop_after: int | None
) -> list[int]:
    tokens: list[int] = []
    stream: Any = await client.completions.create(
        model=model,
        prompt=list(prompt),
        max_tokens=size,
        temperature=0,
        stream=True,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    async with stream:
        async for chunk in stream:
            if stop_after is not None and len(tokens) >= stop_after:
                break
            for choice in chunk.choices:
                tokens.extend(getattr(choice, "token_ids", None) or ())
    return tokens


def _compare(question: Question, tokens: list[int], size: int, counts: Counts) -> None:
    if len(tokens) != size:
        counts.wrong.append(f"{len(tokens)} tokens instead of {size}")
    for place, (token, expected) in enumerate(zip(tokens, question.answer, strict=False)):
        if token == expected:
            continue
        margin = question.margins[place]
        if margin <= NEAR_TIE:
            counts.near_ties += 1
        else:
            counts.wrong.append(
                f"token {place} of {size} is {token} instead of {expected}, which alone leads by "
                f"{margin:.4f} (prompt of {len(question.prompt)})"
            )
        return
