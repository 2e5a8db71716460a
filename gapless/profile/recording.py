"""Recording a stretch of a program: the device's work and the host's ranges, written to files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gapless.profile import ranges
from gapless.profile.timeline import Timeline


@dataclass(frozen=True)
class _Written:
    timeline: Timeline
    timeline_path: Path
    trace_path: Path | None


class Recording:
    """What ``record`` yields: the recording, once the block has ended."""

    def __init__(self) -> None:
        self._written: _Written | None = None

    @property
    def timeline(self) -> Timeline:
        """What was recorded."""
        return self._ended().timeline

    @property
    def timeline_path(self) -> Path:
        """The file that holds the timeline."""
        return self._ended().timeline_path

    @property
    def trace_path(self) -> Path | None:
        """The Perfetto trace, where one was asked for."""
        return self._ended().trace_path

    def _ended(self) -> _Written:
        if self._written is None:
            raise RuntimeError("the recording still runs; read it after the with block has ended")
        return self._written


@contextmanager
def record(
    folder: str | os.PathLike[str],
    capacity: int = ranges.DEFAULT_CAPACITY,
    *,
    trace: bool = True,
) -> Iterator[Recording]:
    """Record what the devices and the host do in the ``with`` block.

    At the end the devices are synchronized, and a timeline and a Perfetto trace are written to the
    folder, named by the process, and never over those of an earlier recording.

    Args:
        folder: where to write; made if it is not there.
        capacity: how many works per stream and ranges of the host are kept; the oldest are
            forgotten first, and counted.
        trace: whether to write a Perfetto trace beside the timeline.

    Raises:
        OSError: the folder cannot be made or written to.
        RuntimeError: a recording is running already.
    """
    from gapless.device import recorder

    recording = Recording()
    Path(folder).mkdir(parents=True, exist_ok=True)
    ranges.start(capacity)
    try:
        recorder.drain()  # what an earlier recording left behind
        recorder.start(capacity)
        yield recording
        _synchronize()
    finally:
        ranges.stop()
        recorder.stop()
        # Also after a failure: what led to it is what one wants to see.
        timeline = Timeline.from_recording(recorder.drain(), ranges.drain())
        recording._written = _write(timeline, Path(folder), trace)


def _synchronize() -> None:
    import torch

    if torch.accelerator.is_available():
        for device in range(torch.accelerator.device_count()):
            torch.accelerator.synchronize(device)


def _write(timeline: Timeline, folder: Path, trace: bool) -> _Written:
    number = 0
    while (path := folder / f"timeline-{os.getpid()}-{number}.npz").exists():
        number += 1
    timeline.save(path)
    if not trace:
        return _Written(timeline, path, None)
    from gapless.profile.trace import write_trace

    trace_path = folder / f"trace-{os.getpid()}-{number}.pftrace"
    write_trace(trace_path, [timeline])
    return _Written(timeline, path, trace_path)
