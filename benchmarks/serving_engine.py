"""One engine in a process of its own; runs loads that are asked for on standard input.

Started by serving.py with what to build as JSON: ``{"engine": arguments of vLLM's EngineArgs}``.
Each line of input, ``{"batch": 8, "prompt": 30, "tokens": 128, "seed": 1}``, gives one of output;
with ``"examine": 1`` in it, what the steps were made of on the device: see serving_device.py.
"""

import json
import os
import random
import sys
import time
from typing import Any

_LOWEST_TOKEN = 100  # those below are special


def main() -> None:
    """Build the engine, then answer until the input ends."""
    job = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    start_s = time.perf_counter()
    from vllm import EngineArgs, LLMEngine

    imported_s = time.perf_counter()
    engine = LLMEngine.from_engine_args(EngineArgs(**job["engine"]))
    vocabulary = engine.model_config.get_vocab_size()
    ready = {
        "import_s": imported_s - start_s,
        "engine_s": time.perf_counter() - imported_s,
        "dtype": str(engine.model_config.dtype).removeprefix("torch."),
    }
    print(json.dumps(ready), file=answers, flush=True)
    for number, line in enumerate(sys.stdin):
        load = json.loads(line)
        if load.get("examine"):
            from serving_device import examine

            answer = examine(
                engine,
                load,
                lambda load, turn, number=number: run(engine, load, vocabulary, f"{number}.{turn}"),
                engine.vllm_config.scheduler_config.max_num_batched_tokens,
            )
        else:
            answer = run(engine, load, vocabulary, str(number))
        print(json.dumps(answer), file=answers, flush=True)


def run(engine: Any, load: dict[str, int], vocabulary: int, number: str) -> dict[str, Any]:
    """Time one whole run: from the first request's submission to the last token of all."""
    from vllm import SamplingParams

    draw = random.Random(load["seed"])
    prompts = [
        [draw.randrange(_LOWEST_TOKEN, vocabulary) for _ in range(load["prompt"])]
        for _ in range(load["batch"])
    ]
    sampling = SamplingParams(temperature=0, max_tokens=load["tokens"], ignore_eos=True)
    first_s: dict[str, float] = {}
    lengths: dict[str, int] = {}
    after_first: tuple[float, int] | None = None  # when all had a token, and how many they had
    start_s = time.perf_counter()
    for index, prompt in enumerate(prompts):
        engine.add_request(f"{number}-{index}", {"prompt_token_ids": prompt}, sampling)
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now_s = time.perf_counter() - start_s
        for output in outputs:
            lengths[output.request_id] = len(output.outputs[0].token_ids)
            first_s.setdefault(output.request_id, now_s)
        if after_first is None and len(first_s) == len(prompts):
            after_first = now_s, sum(lengths.values())
    seconds = time.perf_counter() - start_s
    tokens = sum(lengths.values())
    assert after_first is not None
    assert tokens == load["batch"] * load["tokens"], (tokens, load)
    return {
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "first_token_ms": 1e3 * sum(first_s.values()) / len(first_s),
        "decode_tokens_per_s": (tokens - after_first[1]) / (seconds - after_first[0]),
    }


if __name__ == "__main__":
    main()
