"""The scheduler after each step of the engine, as tables: one row per step."""

import pytest


def request(name, prompt, tokens, **more):
    params = {"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True}
    return {"id": name, "prompt": [5 + n % 250 for n in range(prompt)], "params": params, **more}


# Waiting, running, placeholders (tokens scheduled and not read), blocks in use (of 32 tokens).
SCENARIOS = {
    "three tokens are three steps, and one call more to read the last": (
        [request("a", 10, 3)],
        {},
        [[0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]],
    ),
    "the same, one step at a time": (
        [request("a", 10, 3)],
        {"async_scheduling": False},
        [[0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 0, 0]],
    ),
    "a third waits until one of two has left": (
        [request("a", 10, 3), request("b", 40, 2), request("c", 33, 2)],
        {"max_num_seqs": 2},
        [[1, 2, 2, 3], [1, 2, 2, 3], [1, 1, 1, 1], [0, 1, 1, 2], [0, 1, 1, 2], [0, 0, 0, 0]],
    ),
    "one joins while another decodes": (
        [request("a", 10, 5), request("b", 20, 3, at=2)],
        {},
        [[0, 1, 1, 1], [0, 1, 1, 1], [0, 2, 2, 2], [0, 2, 2, 2], [0, 2, 2, 2], [0, 0, 0, 0]],
    ),
    "one is aborted with a step in flight": (
        [request("a", 10, 8, abort_at=3), request("b", 20, 4)],
        {},
        [[0, 2, 2, 2], [0, 2, 2, 2], [0, 2, 2, 2], [0, 1, 1, 1], [0, 0, 0, 0]],
    ),
    "a prompt of 100 in chunks of 48 has a placeholder from its last chunk on": (
        [request("a", 100, 2)],
        {"max_num_batched_tokens": 48, "max_num_seqs": 4},
        [[0, 1, 0, 2], [0, 1, 0, 3], [0, 1, 1, 4], [0, 1, 1, 4], [0, 0, 0, 0]],
    ),
    "four blocks do not hold two of 65: the second is preempted and begins again": (
        [request("a", 62, 8), request("b", 62, 8)],
        {"num_gpu_blocks_override": 5, "max_model_len": 128},
        [
            *([[0, 2, 2, 4]] * 3),
            *([[1, 1, 1, 3]] * 5),
            [1, 0, 0, 0],
            *([[0, 1, 1, 3]] * 5),
            [0, 0, 0, 0],
        ],
    ),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rows(gapless, model, scenario):
    requests, engine, rows = SCENARIOS[scenario]
    arguments = {"block_size": 32, "enable_prefix_caching": False, **engine}
    answers, facts = gapless.answers(model("llama"), requests, **arguments)
    assert facts["rows"] == rows
    assert facts["page"]["departures"] == sum(count for *_, count in facts["departures"]) > 0
    for one in requests:
        if "abort_at" not in one:
            tokens = answers[one["id"]]["choices"][0]["tokens"]
            assert len(tokens) == one["params"]["max_tokens"]
