"""The figures of a folder of recordings: steps, idle gaps, their causes, and what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gapless.profile.causes import UNMARKED
from gapless.profile.gaps import GapStats, find_gaps, gap_stats
from gapless.profile.intervals import union
from gapless.profile.recording_folder import ProcessRecording
from gapless.profile.runs import split_runs
from gapless.profile.steps import StepStats, find_steps, step_stats
from gapless.profile.timeline import COPY_KINDS, Timeline, TimelineError

HOW_TO_MARK = (
    "call torch.gapless.recorder.set_step(n) before what step n submits, or use gapless.pipeline, "
    "which does"
)
# Children of one program may follow each other; two recordings are further apart than that.
_APART_NS = 5 * 10**9


@dataclass(frozen=True)
class LostRate:
    """A cause of idle time, and how much faster the run would be without it."""

    name: str
    gaps: int
    total_us: float
    share_percent: float
    steps_per_s: float
    tokens_per_s: float | None


@dataclass(frozen=True)
class RunSummary:
    """Steps numbered once, on one device, and the idle gaps between them.

    ``tokens_per_step`` is None where nobody told it, and with it ``tokens_per_s``. Rates are over
    the span from the first step's start to the last one's end.
    """

    number: int
    steps: StepStats
    idle: GapStats
    idle_percent: float
    steps_per_s: float
    tokens_per_step: float | None
    tokens_per_s: float | None
    lost: tuple[LostRate, ...]


@dataclass(frozen=True)
class DeviceSummary:
    """One device in one process. Busy is the union over its streams, waits left out."""

    device: int
    works: int
    streams: int
    copies: int
    span_us: float
    busy_us: float
    busy_percent: float
    runs: tuple[RunSummary, ...]


@dataclass(frozen=True)
class ProcessSummary:
    """One recording of one process; its times are of the first one's ``CLOCK_MONOTONIC``."""

    label: str
    file: str
    pid: int
    process_name: str
    start_ns: int
    end_ns: int
    threads: int
    ranges: int
    dropped_work: int
    dropped_ranges: int
    is_shifted: bool
    devices: tuple[DeviceSummary, ...]


@dataclass(frozen=True)
class Summary:
    """All processes of a folder, and remarks on what is missing, each one line with a remedy."""

    processes: tuple[ProcessSummary, ...]
    notes: tuple[str, ...]

    @property
    def runs(self) -> tuple[tuple[ProcessSummary, DeviceSummary, RunSummary], ...]:
        """Every run, with its process and device."""
        return tuple(
            (process, device, run)
            for process in self.processes
            for device in process.devices
            for run in device.runs
        )


def summarise(
    recordings: Sequence[ProcessRecording],
    warmup: int = 0,
    tokens_per_step: float | None = None,
) -> Summary:
    """Sum up recordings.

    Args:
        recordings: of a folder.
        warmup: how many steps to leave out at the beginning of each run.
        tokens_per_step: how many tokens a step gives; by default what ``count_tokens`` was told.
    """
    processes = tuple(
        _summarise_process(recording, warmup, tokens_per_step) for recording in recordings
    )
    return Summary(processes, tuple(_notes(processes, warmup)))


def _summarise_process(
    recording: ProcessRecording, warmup: int, tokens_per_step: float | None
) -> ProcessSummary:
    timeline = recording.timeline
    start_ns, end_ns = timeline.bounds_ns
    if tokens_per_step is None and timeline.tokens:
        steps = _count_steps(timeline)
        tokens_per_step = timeline.tokens / steps if steps else None
    return ProcessSummary(
        label=recording.label,
        file=recording.path.name,
        pid=timeline.pid,
        process_name=timeline.process_name,
        start_ns=start_ns,
        end_ns=end_ns,
        threads=len(timeline.ranges.threads),
        ranges=len(timeline.ranges.columns),
        dropped_work=timeline.dropped_work,
        dropped_ranges=timeline.ranges.dropped,
        is_shifted=recording.is_shifted,
        devices=tuple(
            _summarise_device(timeline, device, warmup, tokens_per_step)
            for device in timeline.devices
        ),
    )


def _count_steps(timeline: Timeline) -> int:
    """Steps of all runs; of several devices that compute the same steps, those of one."""
    return max(
        (
            sum(len(np.unique(run.column("step")[run.column("step") >= 0]))
                for run in split_runs(timeline, device))
            for device in timeline.devices
        ),
        default=0,
    )  # fmt: skip


def _summarise_device(
    timeline: Timeline, device: int, warmup: int, tokens_per_step: float | None
) -> DeviceSummary:
    mine = timeline.is_busy_work() & (timeline.column("device") == device)
    start_ns, end_ns = (timeline.column(name)[mine] for name in ("start_ns", "end_ns"))
    busy = union(start_ns, end_ns)
    busy_ns = int((busy.end - busy.start).sum())
    span_ns = int(end_ns.max() - start_ns.min()) if len(start_ns) else 0
    runs = []
    for number, run in enumerate(split_runs(timeline, device), 1):
        try:
            runs.append(_summarise_run(run, device, number, warmup, tokens_per_step))
        except TimelineError:  # fewer than two steps: there is no gap in it
            continue
    return DeviceSummary(
        device=device,
        works=int(mine.sum()),
        streams=len(np.unique(timeline.column("stream")[mine])),
        copies=int(np.isin(timeline.column("kind")[mine], COPY_KINDS).sum()),
        span_us=span_ns / 1e3,
        busy_us=busy_ns / 1e3,
        busy_percent=100.0 * busy_ns / span_ns if span_ns else 100.0,
        runs=tuple(runs),
    )


def _summarise_run(
    timeline: Timeline, device: int, number: int, warmup: int, tokens_per_step: float | None
) -> RunSummary:
    steps = find_steps(timeline, device, warmup)
    figures, idle = step_stats(steps), gap_stats(find_gaps(timeline, steps))
    steps_per_s = figures.steps / figures.span_us * 1e6 if figures.span_us else 0.0

    def lost_steps_per_s(idle_us: float) -> float:
        rest_us = figures.span_us - idle_us
        return figures.steps / rest_us * 1e6 - steps_per_s if rest_us > 0 else 0.0

    def tokens(rate: float) -> float | None:
        return None if tokens_per_step is None else rate * tokens_per_step

    lost = [
        (cause, lost_steps_per_s(cause.total_us))
        for cause in idle.causes
    ]  # fmt: skip
    return RunSummary(
        number=number,
        steps=figures,
        idle=idle,
        idle_percent=100.0 * idle.total_us / figures.span_us if figures.span_us else 0.0,
        steps_per_s=steps_per_s,
        tokens_per_step=tokens_per_step,
        tokens_per_s=tokens(steps_per_s),
        lost=tuple(
            LostRate(
                cause.name, cause.gaps, cause.total_us, cause.share_percent, rate, tokens(rate)
            )
            for cause, rate in lost
        ),
    )


def _notes_on_causes(processes: Sequence[ProcessSummary]) -> list[str]:
    runs = [run for process in processes for device in process.devices for run in device.runs]
    idle_us = sum(run.idle.total_us for run in runs)
    unmarked_us = sum(
        cause.total_us for run in runs for cause in run.idle.causes if cause.name == UNMARKED
    )
    if 2 * unmarked_us <= idle_us or idle_us == 0:
        return []
    return [
        f"{100 * unmarked_us / idle_us:.0f} % of the idle time is {UNMARKED}: mark what the host "
        "does with gapless.profile.host_range(name)"
    ]


def _notes_on_times(processes: Sequence[ProcessSummary]) -> list[str]:
    in_order = sorted(processes, key=lambda process: process.start_ns)
    latest = in_order[0] if in_order else None
    for process in in_order:
        assert latest is not None
        if process.start_ns - latest.end_ns > _APART_NS:
            return [
                f"{process.label} began {(process.start_ns - latest.end_ns) / 1e9:.1f} s after the "
                f"last thing in {latest.label}: where these are two recordings, view one with "
                "-d FILE, and record into a folder of its own"
            ]
        latest = max(latest, process, key=lambda each: each.end_ns)
    return []


def _notes(processes: Sequence[ProcessSummary], warmup: int) -> list[str]:
    notes = []
    if not any(process.devices for process in processes):
        notes.append(
            "nothing was recorded on a device, only ranges of the host: check that the program "
            'computes on device "gapless"'
        )
    elif not any(device.runs for process in processes for device in process.devices):
        notes.append(
            f"no device ran two numbered steps{f' after {warmup} of warm-up' if warmup else ''}, "
            f"so that there is no gap between steps to see: {HOW_TO_MARK}"
        )
    notes.extend(_notes_on_causes(processes))
    notes.extend(_notes_on_times(processes))
    for process in processes:
        if process.dropped_work or process.dropped_ranges:
            notes.append(
                f"{process.label}: the buffers dropped the oldest {process.dropped_work} works and "
                f"{process.dropped_ranges} ranges; record a shorter stretch with "
                "gapless.profile.record(folder, capacity=...)"
            )
        if process.is_shifted:
            notes.append(
                f"{process.label} was recorded on another machine, or before it was restarted; its "
                "times were aligned by the clock of the wall, which is good to milliseconds at best"
            )
    return notes
