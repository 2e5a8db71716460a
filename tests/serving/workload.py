"""Requests for the differential tests; each feature in turn, so that they meet in one batch."""

import random

BAD = [chr(number) for number in range(33, 127)]
FEATURES = {
    "greedy": {},
    "penalties": {"presence_penalty": 0.8, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
    "bad words": {"bad_words": BAD},
    "logprobs": {"logprobs": 3},
    "prompt logprobs": {"prompt_logprobs": 2},
    "min tokens": {"min_tokens": 12, "ignore_eos": False},
    "logit bias": {"logit_bias": {70: 30.0, 75: -30.0}},
    "seed": {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "seed": 11},
    "several": {"temperature": 0.7, "seed": 5, "n": 2},
    "stop text": {"stop": ["a", "b", "c"]},
    "stop token": {"stop_token_ids": [80, 90, 100, 110, 120]},
    "regex": {"ignore_eos": False, "schema": {"regex": "[abc]{4}-[0-9]{3}"}, "max_tokens": 40},
    "json": {
        "ignore_eos": False,
        "schema": {
            "json": {
                "type": "object",
                "properties": {"a": {"type": "integer", "maximum": 99}},
                "required": ["a"],
                "additionalProperties": False,
            }
        },
        "max_tokens": 40,
    },
    "choice": {"ignore_eos": False, "schema": {"choice": ["yes", "no"]}, "max_tokens": 10},
    "one token": {"max_tokens": 1},
}
# What another random generator decides differently.
RANDOM = ("seed", "several")


def make(count, features=tuple(FEATURES), tokens=24, longest=60, seed=1, **changes):
    """So many requests, each with the next feature; prompts of random lengths and tokens."""
    generator = random.Random(seed)
    made = []
    for number in range(count):
        feature = features[number % len(features)]
        params = {"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True, **changes}
        params |= FEATURES[feature]
        length = generator.randint(3, longest)
        made.append(
            {
                "id": f"{number} {feature}",
                "prompt": [generator.randint(3, 258) for _ in range(length)],
                "params": params,
            }
        )
    return made
