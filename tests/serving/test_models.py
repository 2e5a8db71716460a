"""Architectures with random weights: the tokens (or embeddings) of upstream's CPU backend."""

import pytest

from tests.serving import models, workload
from tests.serving.test_differential import same

DECODERS = [name for name in models.ARCHITECTURES if name != "bert"]


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=() if name in ("gemma3", "qwen3-moe") else pytest.mark.thorough)
        for name in DECODERS
    ],
)
def test_decoders(gapless, upstream, model, architecture):
    work = workload.make(6, features=("greedy", "logprobs"), longest=90)
    mine, facts = gapless.answers(model(architecture), work)
    theirs, _ = upstream.answers(model(architecture), work, enforce_eager=True)
    same(mine, theirs, tolerance=1e-3)
    assert facts["page"]["steps_decode_graph"] > 0
