"""The kernels of a decode step of SmolLM2-135M, beside the memory's speed and vLLM's kernel.

Times are those of the device's own graph, in which all layers follow one another, on all of its
threads; the two of a row are taken in turns.
"""

import os
import time
from collections.abc import Callable
from statistics import median

import torch
from report import Measurement, load, publish

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

LAYERS = 30
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))  # outputs, inputs
HEAD = (49152, 576)
HEADS, KV_HEADS, DIM, BLOCK = 9, 3, 64, 128
ROWS = (1, 2, 4, 8, 16, 32, 64)
ATTENDED = ((1, 64), (8, 64), (32, 64), (64, 64), (1, 1024), (8, 1024))  # sequences, tokens
REPEATS = 9


def graph_of(work: Callable[[], object]) -> Callable[[], float]:
    """What replays the work and says how many ms it took."""
    graph = torch.accelerator.Graph()
    work()
    with torch.Stream("gapless"), graph:
        results = work()

    def run(_kept: object = results) -> float:
        torch.accelerator.synchronize()
        start_s = time.perf_counter()
        graph.replay()
        torch.accelerator.synchronize()
        return (time.perf_counter() - start_s) * 1e3

    return run


def in_turns(*runs: Callable[[], float]) -> list[tuple[float, ...]]:
    """Each one's times; the first of each is not counted."""
    for run in runs:
        run()
    turns = [tuple(run() for run in runs) for _ in range(REPEATS)]
    return list(zip(*turns, strict=True))


def linear_layers() -> list[Measurement]:
    """All products of a step, and the same bytes read by nothing but a sum."""
    from gapless.kernels.half_weight import HalfWeight

    shapes = [*SHAPES * LAYERS, HEAD]
    weights = [HalfWeight((torch.randn(shape) * 0.05).half().to("gapless")) for shape in shapes]
    numbers = sum(outputs * inputs for outputs, inputs in shapes)
    same_bytes = torch.ones(numbers // 2, device="gapless")
    memory = graph_of(same_bytes.sum)
    rows = []
    for count in ROWS:
        inputs = {size: torch.randn(count, size, device="gapless") for size in (576, 1536)}

        def multiply(inputs: dict[int, torch.Tensor] = inputs) -> list[torch.Tensor]:
            return [weight.multiply(inputs[weight.inputs], None) for weight in weights]

        mine, least = in_turns(graph_of(multiply), memory)
        name = f"linear layers, {count} rows"
        rows.append(Measurement(name, median(mine), "ms", median(least), "read", None, mine))
    return rows


class DecodeStep:
    """What all layers' attention of a decode step reads; each layer has a cache of its own."""

    def __init__(self, sequences: int, tokens: int) -> None:
        blocks = -(-tokens // BLOCK)
        table = torch.arange(sequences * blocks, dtype=torch.int32).view(sequences, blocks)
        slots = table[:, -1].long() * BLOCK + (tokens - 1) % BLOCK
        starts = torch.arange(sequences + 1, dtype=torch.int32)
        lengths = torch.full((sequences,), tokens, dtype=torch.int32)
        self.starts, self.lengths = starts.to("gapless"), lengths.to("gapless")
        self.table, self.slots = table.to("gapless"), slots.to("gapless")
        shape = (LAYERS, sequences * blocks, KV_HEADS, BLOCK, 2 * DIM)
        self.caches = torch.randn(shape, device="gapless")
        self.query = torch.randn(sequences, HEADS, DIM, device="gapless")
        self.key = torch.randn(sequences, KV_HEADS, DIM, device="gapless")
        self.plan = torch.ops.gapless.new_attention_plan()

    def _attend(self, layer: Callable[..., None]) -> list[torch.Tensor]:
        outputs = [torch.empty_like(self.query) for _ in self.caches]
        for cache, output in zip(self.caches, outputs, strict=True):
            layer(
                *(self.query, self.key, self.key, cache, output),
                *(self.starts, self.lengths, self.table, self.slots, DIM**-0.5),
            )
        return outputs

    def as_here(self) -> list[torch.Tensor]:
        """By the device's own kernel."""
        return self._attend(lambda *step: torch.ops.gapless.decode_attention(*step, -1, 0.0))

    def as_in_vllm(self) -> list[torch.Tensor]:
        """By vLLM's, as it is called for prompts."""
        sizes = (HEADS, KV_HEADS, DIM, torch.float32)
        torch.ops.gapless.plan_attention(
            self.plan, self.lengths, self.starts, *sizes, True, -1, "vec", True, "auto"
        )
        rest = (True, None, -1, 0.0, None, "vec", 1.0, 1.0, "auto")
        return self._attend(
            lambda *step: torch.ops.gapless.paged_attention(self.plan, *step, *rest)
        )


def attention() -> list[Measurement]:
    """All layers' attention of a step."""
    import vllm._custom_ops  # noqa: F401

    from gapless.serving.kernels import queue_kernels

    queue_kernels()
    rows = []
    for sequences, tokens in ATTENDED:
        step = DecodeStep(sequences, tokens)
        ours, theirs = in_turns(graph_of(step.as_here), graph_of(step.as_in_vllm))
        name = f"attention, {sequences} x {tokens} tokens"
        rows.append(Measurement(name, median(ours), "ms", median(theirs), "vLLM", None, ours))
    return rows


def main() -> None:
    """Measure and print."""
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("GAPLESS_DEVICE_CORES", str(cores))
    load_before = load()
    title = f"kernels of a decode step, SmolLM2-135M, {LAYERS} layers"
    publish(title, [*linear_layers(), *attention()], load_before)


if __name__ == "__main__":
    main()
