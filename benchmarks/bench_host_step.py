"""What one decode step costs the host: graph replay, copy of the token to the host, event.

Twice: in the loop, where the host submits after it waited for a step and finds its code and data
out of the processor's caches, through which the device has meanwhile read the model; and back to
back, where they are in them. The device works meanwhile. The peer is the same step submitted
eagerly, operator by operator.
"""

import time
from statistics import median

import torch
from report import Measurement, load, publish

from gapless.cli.generate import encode
from gapless.cli.in_process_demo import PROMPTS
from gapless.models.load import load_model
from gapless.models.smollm2 import obtain_smollm2
from gapless.pipeline.decode_step import DecodeStep
from gapless.pipeline.step_program import EagerStep, GraphStep

STEPS = 40
CONTEXT = 128


def main() -> None:
    """Measure and print."""
    load_before = load()
    model = load_model(obtain_smollm2(print), torch.device("gapless"), "auto")
    step = DecodeStep(model.model, 1, CONTEXT)
    prompt = encode(model, PROMPTS[0], None)

    def submit_times_us(program: GraphStep | EagerStep) -> list[float]:
        program.prefill([prompt])
        torch.accelerator.synchronize()
        times = []
        for _ in range(STEPS):
            time.perf_counter_ns()  # so that the clock's own way from memory is not counted
            start_ns = time.perf_counter_ns()
            program.submit()
            times.append((time.perf_counter_ns() - start_ns) / 1e3)
            if program.ring.pending == 2:
                program.ring.pop()
        torch.accelerator.synchronize()
        program.ring.clear()
        return times[2:]

    def back_to_back_us() -> list[float]:
        graph.prefill([prompt])
        graph.submit()
        times = []
        for _ in range(graph.ring.slots - 1):
            start_ns = time.perf_counter_ns()
            graph.submit()
            times.append((time.perf_counter_ns() - start_ns) / 1e3)
        torch.accelerator.synchronize()
        graph.ring.clear()
        return times

    graph = GraphStep(step)
    warm = [time_us for _ in range(10) for time_us in back_to_back_us()]
    replayed = sorted(submit_times_us(graph))
    eager = submit_times_us(EagerStep(step))
    publish(
        "host time to submit one decode step, SmolLM2-135M-Instruct, batch 1",
        [
            Measurement(
                "replay, copy, event, in the loop, p50",
                median(replayed),
                "us",
                peer=median(eager),
                peer_name="eager",
                limit=30,
                repeats=tuple(replayed),
            ),
            Measurement("the same, p90", replayed[len(replayed) * 9 // 10], "us"),
            Measurement("back to back, p50", median(warm), "us", repeats=tuple(warm)),
        ],
        load_before,
    )


if __name__ == "__main__":
    main()
