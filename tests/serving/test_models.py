"""Architectures with random weights: the tokens (or embeddings) of upstream's CPU backend."""

import pytest

from tests.serving import models, workload
from tests.serving.test_differential import same

DECODERS = [name for name in models.ARCHITECTURES if name != "bert"]


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=() if name == "gemma3" else pytest.mark.thorough)
        for name in DECODERS
    ],
)
def test_decoders(gapless, upstream, model, architecture):
    work = workload.make(6, features=("greedy", "logprobs"), longest=90)
    mine, facts = gapless.answers(model(architecture), work)
    theirs, _ = upstream.answers(model(architecture), work, enforce_eager=True)
    same(mine, theirs, tolerance=1e-3)
    assert facts["page"]["steps_decode_graph"] > 0


def test_embeddings(gapless, upstream, model):
    work = workload.make(6, features=("greedy",), longest=90)
    for request in work:
        request["params"] = None
    mine, facts = gapless.answers(model("bert"), work)
    theirs, _ = upstream.answers(model("bert"), work, enforce_eager=True)
    assert mine.keys() == theirs.keys()
    for name in mine:
        for here, there in zip(mine[name]["embedding"], theirs[name]["embedding"], strict=True):
            assert abs(here - there) < 1e-4, name
    assert facts["page"]["steps_pooling"] > 0


@pytest.mark.thorough
def test_lora(gapless, upstream, model, tmp_path):
    adapter = models.save_adapter(tmp_path / "adapter")
    work = workload.make(8, features=("greedy", "logprobs"), longest=40)
    for request in work[::2]:
        request["adapter"] = adapter
    engine = {"enable_lora": True, "max_lora_rank": 8}
    mine, facts = gapless.answers(model("llama"), work, **engine)
    in_step, _ = gapless.answers(model("llama"), work, async_scheduling=False, **engine)
    same(mine, in_step)
    for request in work:
        request["adapter"] = adapter
    all_adapted, _ = gapless.answers(model("llama"), work, **engine)
    # Upstream's CPU code gives a request without an adapter the last one's, so that only batches
    # in which all have one can be compared.
    theirs, _ = upstream.answers(model("llama"), work, enforce_eager=True, **engine)
    same(all_adapted, theirs, tolerance=1e-3)
    for request in work:
        del request["adapter"]
    plain, _ = gapless.answers(model("llama"), work)
    for number, request in enumerate(work):
        other = plain if number % 2 else all_adapted
        assert (
            mine[request["id"]]["choices"][0]["tokens"]
            == (other[request["id"]]["choices"][0]["tokens"])
        )
        assert plain[request["id"]]["choices"] != all_adapted[request["id"]]["choices"]
    assert facts["page"]["steps_decode_graph"] > 0
