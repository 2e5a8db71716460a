"""Asynchronous, synchronous, and upstream's own CPU backend give the same tokens."""

import random

import pytest

from tests.serving import workload


def same(one, other, tolerance=0.0):
    assert one.keys() == other.keys()
    for name in one:
        if one[name]["aborted"]:  # how far it came is a matter of when it was read
            first, second = (answer[name]["choices"][0]["tokens"] for answer in (one, other))
            assert all(a == b for a, b in zip(first, second, strict=False)), name
            continue
        for mine, theirs in zip(one[name]["choices"], other[name]["choices"], strict=True):
            for what in ("tokens", "text", "finish", "stop"):
                assert mine[what] == theirs[what], name
            close(mine["logprobs"], theirs["logprobs"], tolerance, name)
        close(one[name]["prompt_logprobs"], other[name]["prompt_logprobs"], tolerance, name)


def close(mine, theirs, tolerance, name):
    if mine is None or theirs is None:
        assert mine == theirs, name
        return
    for here, there in zip(mine, theirs, strict=True):
        if here is None or there is None:
            assert here == there, name
            continue
        assert tolerance or here == there, name
        for token in here.keys() & there.keys():
            assert abs(here[token] - there[token]) <= tolerance, name


TURNS = 4
# A step's batch is another one in the other schedule. On one thread and these weights, a sequence's
# sums are rounded alike whatever the batch, so that bits can be compared; else not, by about 1e-6.
BATCH_INVARIANT = {
    "additional_config": {"linear_weights": "plain"},
    "environment": {"GAPLESS_DEVICE_CORES": "1"},
}
FLOAT16 = "float16 weights"
VARIANTS = {
    "plain": {},
    "tiny pool": {"num_gpu_blocks_override": 12, "block_size": 32, "max_model_len": 256},
    "chunks of 48": {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 48},
    "prefix cache": {"enable_prefix_caching": True, "block_size": 32},
    "eager": {"enforce_eager": True},
    FLOAT16: {"additional_config": {}, "environment": {}},
}


@pytest.mark.parametrize(
    ("variant", "count"),
    [
        pytest.param(
            variant,
            count,
            marks=()
            if count == 64 and variant in ("tiny pool", "chunks of 48", "prefix cache", FLOAT16)
            else pytest.mark.thorough,
        )
        for variant in VARIANTS
        for count in (1, 8, 64)
        if (variant, count) != ("tiny pool", 1)  # one sequence preempts nobody
    ],
)
def test_asynchronous_is_synchronous(gapless, model, variant, count):
    engine = {"enable_prefix_caching": False, **BATCH_INVARIANT, **VARIANTS[variant]}
    work = workload.make(count, longest=120 if variant != "plain" else 60)
    if variant == "prefix cache":
        for number, request in enumerate(work):
            request["prompt"] = [7] * 64 + request["prompt"][:40]
            request["at"] = number // 2
    for number, request in enumerate(work):
        if count > 8 and number % 13 == 5:
            request["abort_at"] = 4 + number % 7
    ahead, facts = gapless.answers(model("llama"), work, async_scheduling=True, **engine)
    in_step, facts_in_step = gapless.answers(model("llama"), work, async_scheduling=False, **engine)
    same(ahead, in_step, tolerance=1e-4 if variant == FLOAT16 else 0.0)
    page = facts["page"]
    assert page["waits_synchronous_scheduling"] == 0
    assert facts_in_step["page"]["waits_synchronous_scheduling"] > 0
    assert (page["steps_decode_graph"] > 0) == (variant != "eager")
    assert facts["free_blocks"] == facts["blocks"] - 1  # the null block
    assert facts["most_running"] <= 64
    if variant == "tiny pool" and count == 64:
        assert facts["preemptions"] > 0
    if variant == "chunks of 48" and count > 1:
        assert page["steps_mixed"] > 1
    if variant == "prefix cache" and count > 1:
        assert any(answer.get("cached") for answer in ahead.values())
    if count == 64:
        assert page["waits_grammar"] > 0
        assert page["waits_earlier_tokens"] > 0
        assert page["waits_prompt_logprobs"] > 0


@pytest.mark.thorough
def test_sessions_whose_input_streams_in(gapless, upstream, model):
    """Some pieces wait for the answer to the one before; others come while that is being given."""
    draw = random.Random(3)
    sessions = [
        {
            "id": f"session {number}",
            "params": {"temperature": 0.0, "max_tokens": 10 + number, "ignore_eos": True},
            "pieces": [
                {"tokens": [draw.randint(3, 258) for _ in range(9)], "at": piece * (number % 3) * 9}
                for piece in range(TURNS)
            ],
        }
        for number in range(8)
    ]
    work = workload.make(8)
    alike = [request for request in work if request["id"].partition(" ")[2] not in workload.RANDOM]

    def answers(process, requests, **engine):
        found, facts = process.answers(model("llama"), requests, sessions=sessions, **engine)
        return {name: found[name]["session"] for name in found if "session" in name}, facts

    ahead, facts = answers(gapless, work, async_scheduling=True)
    in_step, _ = answers(gapless, work, async_scheduling=False)
    theirs, _ = answers(upstream, alike, enforce_eager=True)
    assert {name: len(tokens) for name, tokens in ahead.items()} == {
        f"session {number}": TURNS * (10 + number) for number in range(8)
    }
    assert ahead == in_step
    assert ahead == theirs
    assert facts["page"]["waits_synchronous_scheduling"] == 0


def test_features_act(gapless, model):
    before, _ = gapless.answers(model("llama"), workload.make(15, features=("greedy",)))
    acting, _ = gapless.answers(model("llama"), workload.make(15))
    unchanged = ("greedy", "logprobs", "prompt logprobs", "min tokens", "stop token", "stop text")
    for (name, answer), plain in zip(acting.items(), before.values(), strict=True):
        if name.partition(" ")[2] not in unchanged:
            assert answer["choices"][0]["tokens"] != plain["choices"][0]["tokens"], name
    by_feature = {name.partition(" ")[2]: answer for name, answer in acting.items()}
    assert len(by_feature["logprobs"]["choices"][0]["logprobs"][0]) >= 3
    assert by_feature["prompt logprobs"]["prompt_logprobs"][1]
    assert len(by_feature["several"]["choices"]) == 2
    # Before it stands what the prompt's last bytes had no character for.
    assert by_feature["choice"]["choices"][0]["text"].endswith(("yes", "no"))
    assert len(by_feature["one token"]["choices"][0]["tokens"]) == 1
    bad = by_feature["bad words"]["choices"][0]["text"]
    assert not set(bad) & set(workload.BAD)
    assert by_feature["stop text"]["choices"][0]["finish"] in ("stop", "length")


@pytest.mark.parametrize(
    "count",
    [pytest.param(1, marks=pytest.mark.thorough), pytest.param(8, marks=pytest.mark.thorough), 64],
)
def test_upstream_says_the_same(gapless, upstream, model, count):
    features = tuple(name for name in workload.FEATURES if name not in workload.RANDOM)
    work = workload.make(count, features=features)
    mine, _ = gapless.answers(model("llama"), work)
    theirs, _ = upstream.answers(model("llama"), work, enforce_eager=True)
    same(mine, theirs, tolerance=1e-3)
