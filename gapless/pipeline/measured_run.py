"""One generation, timed: tokens per second, step times, and the device's idle gaps."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from gapless.pipeline.batch_loop import BatchLoop, StepResult
from gapless.pipeline.step_program import EagerStep, GraphStep

if TYPE_CHECKING:
    from gapless.profile import Recording, Timeline

# The first steps find caches cold; they are left out of the numbers, not of the tokens.
WARMUP_STEPS = 2


@dataclass(frozen=True)
class IdleFigures:
    """The device's idle gaps between steps, and how busy it was. None of it is the host's view."""

    p50_us: float
    p99_us: float
    max_us: float
    busy_percent: float


@dataclass(frozen=True)
class RunFigures:
    """What a run gave and what it took.

    Attributes:
        device: where it ran.
        rows: the batch size.
        depth: how far the host ran ahead; 1 is sequential.
        tokens: each row's tokens, its stop token included.
        steps: how many steps the host read, the prefill included.
        tokens_per_s: new tokens of all rows per second, prefill and warm-up left out.
        step_p50_us: time of a step: on the device where it records, else between two tokens.
        step_p99_us: the same, 99th percentile.
        submit_p50_us: host time to submit a step: replay, copy to the host and event.
        idle: None where the device does not record.
        timeline: what was recorded, for a trace.
    """

    device: str
    rows: int
    depth: int
    tokens: tuple[tuple[int, ...], ...]
    steps: int
    tokens_per_s: float
    step_p50_us: float
    step_p99_us: float
    submit_p50_us: float
    idle: IdleFigures | None
    timeline: Timeline | None = field(repr=False)


def measure_run(
    program: EagerStep | GraphStep,
    prompts: Sequence[Sequence[int]],
    depth: int,
    max_new_tokens: int,
    stop_tokens: Sequence[int] = (),
    host_work: Callable[[StepResult], None] | None = None,
) -> RunFigures:
    """Prefill, generate to the end, and report; the recorder runs during the steps only.

    Raises:
        UsageError: the prompts or the new tokens do not fit.
    """
    program.prefill(prompts)
    if program.device.type != "cpu":
        torch.accelerator.synchronize(program.device)
    loop = BatchLoop(program, depth, host_work)
    with _recording(program.device) as recording:
        results = list(loop.run(max_new_tokens, stop_tokens))
    timeline = recording.timeline if recording is not None else None
    gaps_us = np.diff([result.ready_ns for result in results]) / 1e3
    settled_us = gaps_us[WARMUP_STEPS:] if len(gaps_us) > WARMUP_STEPS else gaps_us
    settled = results[len(results) - len(settled_us) :]
    new_tokens = sum(token is not None for result in settled for token in result.tokens)
    step_us = _percentiles(settled_us)
    idle = None
    if timeline is not None and len(results) > WARMUP_STEPS + 2:
        step_us, idle = _device_figures(timeline)
    submit_us = [(r.submit_end_ns - r.submit_start_ns) / 1e3 for r in results[1:]]
    total_us = float(settled_us.sum())
    return RunFigures(
        device=str(program.device),
        rows=len(prompts),
        depth=depth,
        tokens=_by_row(results),
        steps=len(results),
        tokens_per_s=new_tokens / total_us * 1e6 if total_us else 0.0,
        step_p50_us=step_us[0],
        step_p99_us=step_us[1],
        submit_p50_us=_percentiles(np.asarray(submit_us))[0],
        idle=idle,
        timeline=timeline,
    )


@contextmanager
def _recording(device: torch.device) -> Iterator[Recording | None]:
    if device.type != "gapless":
        yield None
        return
    from gapless.profile import record

    with (
        tempfile.TemporaryDirectory(prefix="gapless-") as folder,
        record(folder, trace=False) as recording,
    ):
        yield recording


def _device_figures(timeline: Timeline) -> tuple[tuple[float, float], IdleFigures]:
    from gapless.profile import analyse

    # One more: step 0 is the prefill, of which only the copy of its tokens was recorded.
    report = analyse(timeline, warmup=WARMUP_STEPS + 1)
    idle = report.idle
    figures = IdleFigures(idle.p50_us, idle.p99_us, idle.max_us, report.steps.busy_percent)
    return (report.steps.step_p50_us, report.steps.step_p99_us), figures


def _percentiles(values_us: np.ndarray) -> tuple[float, float]:
    if len(values_us) == 0:
        return 0.0, 0.0
    p50, p99 = np.percentile(values_us, (50, 99))
    return float(p50), float(p99)


def _by_row(results: Sequence[StepResult]) -> tuple[tuple[int, ...], ...]:
    rows = zip(*(result.tokens for result in results), strict=True)
    return tuple(tuple(token for token in row if token is not None) for row in rows)
