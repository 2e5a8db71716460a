"""What a process's device did in a run of steps: in a worker by ``AsyncExecutor.call``.

executor.call(begin_record, executor.device)
...  # steps
records = executor.call(end_record, warmup)  # one per rank
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from gapless.pipeline.device_choice import choose_device

_cpu_before_s = 0.0


@dataclass(frozen=True, eq=False)
class WorkerRecord:
    """One worker's steps, as its device's recorder has them; times are ``CLOCK_MONOTONIC``.

    Attributes:
        step: int64 ``[n]``, the steps' numbers, without those left out as warm-up.
        start_ns, end_ns: int64 ``[n]``, when each ran on the device.
        busy_percent: of the time from the first step to the last one.
        gap_p50_us, gap_p99_us: idle time between two steps.
        cpu_s: processor time of the whole process while it was recorded.
        memory_bytes: its share of memory (PSS): what it shares counts in part.
    """

    step: npt.NDArray[np.int64]
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    busy_percent: float
    gap_p50_us: float
    gap_p99_us: float
    cpu_s: float
    memory_bytes: int


def begin_record(device: torch.device | str, capacity: int = 65536) -> None:
    """Record from now on, keeping the last ``capacity`` works of each stream.

    A device that does not record, which is any but gapless, is left alone.
    """
    global _cpu_before_s
    _cpu_before_s = time.process_time()
    if choose_device(str(device)).type == "gapless":
        from gapless.device import recorder

        recorder.drain()
        recorder.start(capacity)


def end_record(warmup: int = 0) -> WorkerRecord | None:
    """Stop recording, and sum up; None where the device does not record.

    Raises:
        TimelineError: fewer than two steps were recorded after the first ``warmup`` ones.
    """
    cpu_s = time.process_time() - _cpu_before_s
    from gapless.device import recorder
    from gapless.profile import Timeline, analyse
    from gapless.profile.ranges import drain
    from gapless.profile.steps import find_steps

    if not recorder.is_on():
        return None
    recorder.stop()
    timeline = Timeline.from_recording(recorder.drain(), drain())
    steps = find_steps(timeline, warmup=warmup)
    report = analyse(timeline, warmup=warmup)
    return WorkerRecord(
        step=steps.number,
        start_ns=steps.start_ns,
        end_ns=steps.end_ns,
        busy_percent=report.steps.busy_percent,
        gap_p50_us=report.idle.p50_us,
        gap_p99_us=report.idle.p99_us,
        cpu_s=cpu_s,
        memory_bytes=_proportional_bytes(),
    )


def _proportional_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
