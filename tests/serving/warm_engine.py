"""Runs vLLM engines in children of one process that has imported vLLM already.

The import takes ten times as long as what a test wants to see. Reads one job per line on its
standard input and answers with one line for each:

    {"engine": arguments of EngineArgs, "requests": [...], "out": file for the answers}
"""

import copy
import ctypes
import gc
import json
import os
import signal
import sys
import traceback

SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def answer(job):
    """What the engine says to the requests, which come and go at the steps that they name."""
    from vllm import EngineArgs, PoolingParams, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.engine.llm_engine import LLMEngine

    engine = LLMEngine.from_engine_args(EngineArgs(**job["engine"]))
    scheduler = engine.engine_core.engine_core.scheduler
    facts = {"preemptions": 0, "most_running": 0, "steps": 0, "rows": []}
    preempt = scheduler._preempt_request

    def counted(*args, **kwargs):
        facts["preemptions"] += 1
        return preempt(*args, **kwargs)

    scheduler._preempt_request = counted
    answers, aborted, waiting = {}, set(), list(job["requests"])
    sessions = [Session(engine, session) for session in job.get("sessions", ())]
    while waiting or sessions or engine.has_unfinished_requests():
        sessions = [session for session in sessions if session.go_on(facts["steps"])]
        for request in [one for one in waiting if one.get("at", 0) <= facts["steps"]]:
            waiting.remove(request)
            params = dict(request["params"] or {})
            if bias := params.pop("logit_bias", None):  # JSON knows only text as keys
                params["logit_bias"] = {int(token): value for token, value in bias.items()}
            if schema := params.pop("schema", None):
                params["structured_outputs"] = StructuredOutputsParams(**schema)
            engine.add_request(
                request["id"],
                {"prompt_token_ids": request["prompt"]},
                SamplingParams(**params) if params else PoolingParams(task="embed"),
                lora_request=adapter(request.get("adapter")),
            )
        for request in job["requests"]:
            if request.get("abort_at") == facts["steps"]:
                engine.abort_request([request["id"]])
                aborted.add(request["id"])
        for output in engine.step():
            if is_pooled(output):
                answers[output.request_id] = {"embedding": output.outputs.data.tolist()}
                continue
            if output.request_id not in [request["id"] for request in job["requests"]]:
                heard = answers.setdefault(output.request_id, {"session": []})
                heard["session"] += output.outputs[0].token_ids
                continue
            # Of several choices, an output has only those that have news.
            known = answers.get(output.request_id, {}).get("choices", {})
            answers[output.request_id] = told(output, known)
        facts["steps"] += 1
        facts["rows"].append(row(scheduler))
        facts["most_running"] = max(facts["most_running"], len(scheduler.running))
    for name, one in answers.items():
        one["aborted"] = name in aborted
        if "choices" in one:
            one["choices"] = [one["choices"][index] for index in sorted(one["choices"])]
    facts["free_blocks"] = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    facts["blocks"] = scheduler.kv_cache_manager.block_pool.num_gpu_blocks
    if os.environ.get("VLLM_TARGET_DEVICE") != "cpu":
        facts |= device_facts()
    return {"answers": answers, "facts": facts}


class Session:
    """A request whose prompt comes in pieces, each of which is answered and gone on from."""

    def __init__(self, engine, session):
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.engine, self.name = engine, session["id"]
        # Each has its tokens, and the step from which it is there.
        self.pieces = list(session["pieces"])
        params = {**session["params"], "output_kind": RequestOutputKind.DELTA}
        self.params = SamplingParams(**params)
        self.end = self.request([0], self.name, False)
        engine.input_processor.assign_request_id(self.end)

    def request(self, tokens, name, is_resumable):
        """What the engine is given."""
        return self.engine.input_processor.process_inputs(
            request_id=name,
            prompt={"prompt_token_ids": tokens},
            params=self.params,
            supported_tasks=self.engine.get_supported_tasks(),
            resumable=is_resumable,
        )

    def go_on(self, step):
        """Give the engine what is there by now; whether there will be more."""
        while self.pieces and self.pieces[0]["at"] <= step:
            piece = self.request(self.pieces.pop(0)["tokens"], self.end.request_id, True)
            piece.external_req_id = self.name
            self.submit(piece)
        if not self.pieces:
            self.submit(self.end)
        return bool(self.pieces)

    def submit(self, request):
        """To the two parts of the engine, which extend lists and so must not have the same ones."""
        self.engine.output_processor.add_request(request, None, None, 0)
        self.engine.engine_core.add_request(copy.deepcopy(request))


def adapter(folder):
    """A LoRA adapter to apply."""
    from vllm.lora.request import LoRARequest

    return folder and LoRARequest("adapter", 1, folder)


def row(scheduler):
    """Where the scheduler stands after a step of the engine."""
    pool = scheduler.kv_cache_manager.block_pool
    return [
        len(scheduler.waiting),
        len(scheduler.running),
        sum(request.num_output_placeholders for request in scheduler.requests.values()),
        pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
    ]


def is_pooled(output):
    """Whether it is a pooling model's."""
    return hasattr(output.outputs, "data")


def told(output, choices):
    """What a test compares of one request's output, with the choices that are known already."""
    return {
        "cached": output.num_cached_tokens,
        "prompt_logprobs": logprobs_of(output.prompt_logprobs),
        "choices": choices
        | {
            choice.index: {
                "tokens": list(choice.token_ids),
                "text": choice.text,
                "finish": choice.finish_reason,
                "stop": choice.stop_reason,
                "logprobs": logprobs_of(choice.logprobs),
            }
            for choice in output.outputs
        },
    }


def logprobs_of(positions):
    """For each position the tokens and their log probabilities."""
    if positions is None:
        return None
    return [
        position and {str(token): value.logprob for token, value in position.items()}
        for position in positions
    ]


def device_facts():
    """What the device counted."""
    from gapless import _C
    from gapless.serving.metrics_page import engine_page, read_pages

    pages = list(read_pages(engine_page().path.parent))
    departures = [list(entry) for entry in _C.departures()]
    return {"page": pages[0].numbers, "departures": departures}


def end_with_parent():
    """Also where the parent is killed while this process computes."""
    ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)


def main():
    """Fork a child for each job."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    end_with_parent()
    import vllm.v1.engine.llm_engine  # noqa: F401
    from vllm.platforms import current_platform

    print(json.dumps({"platform": current_platform.device_type}), flush=True)
    gc.collect()
    gc.freeze()  # a child's collections need not look through what was imported
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            end_with_parent()
            os.environ.update(job.get("environment", {}))
            try:
                result = answer(job)
            except BaseException as error:
                result = {
                    "error": f"{type(error).__name__}: {error}",
                    "trace": traceback.format_exc(),
                }
            with open(job["out"], "w") as file:
                json.dump(result, file)
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": status}), flush=True)


if __name__ == "__main__":
    main()
