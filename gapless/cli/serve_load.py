"""Requests to a server through the official ``openai`` client, and when each token came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_ANY_KEY = "none"  # the client wants one; the server does not


@dataclass(frozen=True)
class Answer:
    """One request's answer; times are of ``CLOCK_MONOTONIC``, one for each piece of the stream."""

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    start_ns: int
    piece_ns: tuple[int, ...]


@dataclass(frozen=True)
class LoadFigures:
    """What the clients of one load saw."""

    requests: int
    tokens: int
    seconds: float
    tokens_per_s: float
    first_token_p50_ms: float
    first_token_max_ms: float
    inter_token_p50_ms: float
    inter_token_p99_ms: float
    start_ns: int
    end_ns: int


def connect(url: str) -> AsyncOpenAI:
    """A client of this server; close it with ``async with``."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=url, api_key=_ANY_KEY, max_retries=0)


async def ask(
    client: AsyncOpenAI,
    model: str,
    question: str,
    max_tokens: int,
    stop_at_end: bool = False,
    show: Callable[[str], None] | None = None,
) -> Answer:
    """One question, greedily answered and streamed.

    Args:
        client: of the server.
        model: its name there.
        question: in words.
        max_tokens: how many tokens at most.
        stop_at_end: whether the model may end its answer before that.
        show: is given the text piece by piece.
    """
    start_ns = time.monotonic_ns()
    prompt: tuple[int, ...] = ()
    tokens: list[int] = []
    pieces: list[str] = []
    piece_ns: list[int] = []
    stream: Any = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        stream=True,
        temperature=0,
        max_tokens=max_tokens,
        extra_body={"return_token_ids": True, "ignore_eos": not stop_at_end},
    )
    async for chunk in stream:
        prompt = prompt or tuple(getattr(chunk, "prompt_token_ids", None) or ())
        for choice in chunk.choices:
            new = getattr(choice, "token_ids", None) or ()
            if new:
                piece_ns.append(time.monotonic_ns())
                tokens.extend(new)
            text = choice.delta.content or ""
            pieces.append(text)
            if show is not None and text:
                show(text)
    return Answer(prompt, tuple(tokens), "".join(pieces), start_ns, tuple(piece_ns))


async def ask_all(
    client: AsyncOpenAI, model: str, questions: Sequence[str], max_tokens: int
) -> tuple[Answer, ...]:
    """All questions at once."""
    return tuple(
        await asyncio.gather(*(ask(client, model, text, max_tokens) for text in questions))
    )


async def margin(client: AsyncOpenAI, model: str, prefix: Sequence[int]) -> float:
    """By how much the likeliest next token leads over the second, in natural logarithms."""
    result: Any = await client.completions.create(
        model=model, prompt=list(prefix), max_tokens=1, temperature=0, logprobs=2
    )
    best = sorted(result.choices[0].logprobs.top_logprobs[0].values(), reverse=True)
    return float(best[0] - best[1])


def figures(answers: Sequence[Answer]) -> LoadFigures:
    """Sum up answers that were asked for at the same time."""
    start_ns = min(answer.start_ns for answer in answers)
    end_ns = max(answer.piece_ns[-1] for answer in answers)
    first_ms = np.array([answer.piece_ns[0] - answer.start_ns for answer in answers]) / 1e6
    between_ms = np.concatenate([np.diff(answer.piece_ns) for answer in answers]) / 1e6
    tokens = sum(len(answer.tokens) for answer in answers)
    seconds = (end_ns - start_ns) / 1e9
    return LoadFigures(
        requests=len(answers),
        tokens=tokens,
        seconds=seconds,
        tokens_per_s=tokens / seconds,
        first_token_p50_ms=float(np.percentile(first_ms, 50)),
        first_token_max_ms=float(first_ms.max()),
        inter_token_p50_ms=float(np.percentile(between_ms, 50)),
        inter_token_p99_ms=float(np.percentile(between_ms, 99)),
        start_ns=start_ns,
        end_ns=end_ns,
    )
