"""What a decode step is made of on the device; runs in the process of an engine of this project.

Three times are compared, taken in turns: a step of a live engine, from one to the next; the same
step alone, that is its graph, head and choice of the token replayed by a host that does nothing
else; and the products of its linear layers and head alone, packed as the engine has them.
"""

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

_TURNS = 3
_ALONE = 8  # replays


def examine(
    engine: Any, load: dict[str, int], generate: Any, prefill_tokens: int
) -> dict[str, Any]:
    """A batch's decode steps: idle gaps, and the three times in ms; medians of the turns.

    Args:
        engine: vLLM's ``LLMEngine``, in this process.
        load: as for ``generate``, which runs it.
        prefill_tokens: how many tokens of prompts one step takes at most.
    """
    [runner] = engine.collective_rpc(lambda worker: worker.model_runner)
    batch = load["batch"]
    step, products = _step_alone(runner, batch), _products(runner, batch)
    # Those with prompts in them, and the two after: the host is behind there.
    warmup = -(-batch * load["prompt"] // prefill_tokens) + 2
    turns = []
    for turn in range(_TURNS):
        report = _recorded(lambda: generate(load, turn), warmup)  # noqa: B023
        turns.append(
            {
                "live_ms": report.steps.period_p50_us / 1e3,
                "alone_ms": _time_ms(step),
                "products_ms": _time_ms(products),
                "gap_p50_us": report.idle.p50_us,
                "gap_p99_us": report.idle.p99_us,
                "busy_percent": report.steps.busy_percent,
            }
        )
    return {name: median(each[name] for each in turns) for name in turns[0]} | {"turns": turns}


def _recorded(run: Any, warmup: int) -> Any:
    from gapless.profile import analyse, record
    from gapless.profile.recording_folder import load_folder

    with tempfile.TemporaryDirectory(prefix="gapless-serving-") as folder:
        with record(folder):
            run()
        [timeline] = [each.timeline for each in load_folder(Path(folder)) if each.timeline.devices]
    return analyse(timeline, warmup=warmup)


def _time_ms(run: Any) -> float:
    torch.accelerator.synchronize()
    start_s = time.perf_counter()
    for _ in range(_ALONE):
        run()
    torch.accelerator.synchronize()
    return (time.perf_counter() - start_s) / _ALONE * 1e3


def _step_alone(runner: Any, batch: int) -> Any:
    """The step's work, whose tokens and cache are whatever the last step has left."""
    entries = runner.model.concrete_cudagraph_entries
    sizes = sorted((key.num_tokens, index) for index, key in enumerate(entries))
    index = next(index for tokens, index in sizes if tokens >= batch)
    entry = list(entries.values())[index]
    model = runner.get_model()

    def run() -> None:
        entry.cudagraph.replay()
        model.compute_logits(entry.output[:batch]).argmax(-1)

    return run


def _products(runner: Any, batch: int) -> Any:
    model = runner.get_model()
    methods = [getattr(module, "quant_method", None) for module in model.modules()]
    weights = [method.packed for method in methods if hasattr(method, "packed")]
    dtype = runner.model_config.dtype
    sizes = {each.inputs for each in weights}
    inputs = {size: torch.randn(batch, size, dtype=dtype).to("gapless") for size in sizes}
    graph, stream = torch.accelerator.Graph(), torch.Stream("gapless")
    torch.accelerator.synchronize()
    with stream, graph:
        for weight in weights:
            weight.multiply(inputs[weight.inputs], None)
    return graph.replay
