"""Idle gaps between decode steps of SmolLM2-135M-Instruct, with Python work in every step.

Sequential, double-buffered, and double-buffered with a Python thread in a busy loop beside it,
alternating, several times each. The gap is measured by the device's own recorder.
"""

import threading
from statistics import median

import torch
from report import Measurement, load, publish

from gapless.cli.generate import encode
from gapless.cli.in_process_demo import PROMPTS, busy_work
from gapless.models.load import load_model
from gapless.models.smollm2 import obtain_smollm2
from gapless.pipeline.batch_loop import DOUBLE_BUFFERED, SEQUENTIAL
from gapless.pipeline.context_plan import plan_context
from gapless.pipeline.decode_step import DecodeStep
from gapless.pipeline.measured_run import RunFigures, measure_run
from gapless.pipeline.step_program import prepare

HOST_WORK_US = 400
NEW_TOKENS = 120
REPEATS = 3


class BusyThread:
    """A thread that runs Python without pause, and so always wants the interpreter's lock."""

    def __enter__(self) -> None:
        self._stop = False
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()

    def _spin(self) -> None:
        while not self._stop:
            pass


def main() -> None:
    """Measure and print."""
    load_before = load()
    model = load_model(obtain_smollm2(print), torch.device("gapless"), "auto")
    prompts = [encode(model, PROMPTS[0], None)]
    plan = plan_context(model.model.config, prompts, NEW_TOKENS)
    program = prepare(DecodeStep(model.model, 1, plan.context))
    work = busy_work(HOST_WORK_US)

    def run(depth: int) -> RunFigures:
        return measure_run(program, prompts, depth, plan.max_new_tokens, (), work)

    runs: dict[str, list[RunFigures]] = {"sequential": [], "double": [], "busy": []}
    for _ in range(REPEATS):
        runs["sequential"].append(run(SEQUENTIAL))
        runs["double"].append(run(DOUBLE_BUFFERED))
        with BusyThread():
            runs["busy"].append(run(DOUBLE_BUFFERED))
    assert len({figures.tokens for each in runs.values() for figures in each}) == 1

    def row(name: str, kind: str, what: str, unit: str, **more: object) -> Measurement:
        values = tuple(
            getattr(figures.idle if what != "tokens_per_s" else figures, what)
            for figures in runs[kind]
        )
        return Measurement(name, median(values), unit, repeats=values, **more)

    double = row("", "double", "p50_us", "us").value
    publish(
        f"idle gap between steps, batch 1, {HOST_WORK_US} us of host work per step",
        [
            row(
                "sequential, p50", "sequential", "p50_us", "us", peer=HOST_WORK_US, peer_name="work"
            ),
            row("double-buffered, p50", "double", "p50_us", "us", limit=30),
            row("double-buffered, p99", "double", "p99_us", "us", limit=100),
            row(
                "double-buffered beside a busy thread, p50",
                "busy",
                "p50_us",
                "us",
                peer=double,
                peer_name="alone",
                limit=2 * double,
            ),
            row("busy, sequential", "sequential", "busy_percent", "%"),
            row("busy, double-buffered", "double", "busy_percent", "%"),
            row("tokens/s, sequential", "sequential", "tokens_per_s", "1/s"),
            row(
                "tokens/s, double-buffered",
                "double",
                "tokens_per_s",
                "1/s",
                peer=row("", "sequential", "tokens_per_s", "").value,
                peer_name="sequential",
            ),
        ],
        load_before,
    )


if __name__ == "__main__":
    main()
