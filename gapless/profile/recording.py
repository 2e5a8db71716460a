"""Recording a stretch of a program: the device's work and the host's ranges, written to a file."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from gapless.profile import ranges, tokens
from gapless.profile.joining import join
from gapless.profile.timeline import WORK_COLUMNS, Timeline
from gapless.profile.timeline_file import save_in


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


class _Session:
    """A recording that runs. Several may: all are given what was recorded since the last of them
    began or ended."""

    def __init__(self, folder: Path, capacity: int) -> None:
        self.folder = folder
        self.capacity = capacity
        self.parts: list[Timeline] = []


_running: list[_Session] = []
_lock = Lock()
_is_registered = False


@contextmanager
def record(
    folder: str | os.PathLike[str],
    capacity: int = ranges.DEFAULT_CAPACITY,
    *,
    trace: bool = False,
) -> Iterator[Recording]:
    """Record what the devices and the host do in the ``with`` block.

    At the end the devices are synchronized, and a timeline is written to the folder, named by the
    process, and never over an earlier one. A child forked in the block writes its own when it ends.
    Recordings may be nested, or begin and end as they like; the first one's capacity is all theirs.

    Args:
        folder: where to write; made if it is not there.
        capacity: how many works per stream and ranges of the host are kept; the oldest are
            forgotten first, and counted.
        trace: whether to write a Perfetto trace beside the timeline, as ``gapless view`` would.

    Raises:
        OSError: the folder cannot be made or written to.
        ValueError: ``capacity`` is below 1.
        RuntimeError: torch.profiler is recording.
    """
    recording = Recording()
    session = begin(folder, capacity)
    try:
        yield recording
        _synchronize()
    finally:
        # Also after a failure: what led to it is what one wants to see.
        timeline = _end(session)
        recording._written = _write(timeline, session.folder, trace)


def begin(folder: str | os.PathLike[str], capacity: int = ranges.DEFAULT_CAPACITY) -> _Session:
    """Record until the process ends, or until ``record`` ends it; see ``record``."""
    from gapless.device import process_end, recorder

    global _is_registered
    if capacity < 1:
        raise ValueError(f"capacity is {capacity}; it must be at least 1")
    # Absolute: the program may change its working directory before the end.
    session = _Session(Path(folder).absolute(), capacity)
    session.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=session.folder):
        pass  # better to learn now that the folder cannot be written to
    with _lock:
        if _running:
            _hand_out()
        elif recorder.is_on():
            raise RuntimeError("torch.profiler uses the recorder; end that profile first")
        else:
            ranges.start(capacity)
            tokens.start()
            recorder.drain()  # what an earlier recording left behind
            recorder.start(capacity)
        _running.append(session)
        if not _is_registered:
            process_end.after_last_work(finish)
            _is_registered = True
    return session


def finish() -> None:
    """Write what still records, for a process that is about to end; a second call does nothing.

    A process that recorded nothing, a compiler's helper for instance, writes no file.
    """
    while _running:
        session = _running[-1]
        timeline = _end(session)
        if timeline.is_empty:
            continue
        try:
            save_in(timeline, session.folder)
        except OSError as error:
            print(
                f"gapless: error: the recording of process {os.getpid()} cannot be written to "
                f"{session.folder} ({error.strerror or error}); it is lost",
                file=sys.stderr,
                flush=True,
            )


def _end(session: _Session) -> Timeline:
    """Stop this recording, and the recorders with the last one; what it has recorded."""
    from gapless.device import recorder

    with _lock:
        if session in _running:
            if len(_running) == 1:
                ranges.stop()
                tokens.stop()
                recorder.stop()
            _hand_out()
            _running.remove(session)
    return join(session.parts, session.capacity)


def _hand_out() -> None:
    """Give all that was recorded since the last time to each recording that runs."""
    from gapless.device import recorder

    host, counted = ranges.drain(), tokens.drain()
    if _device_was_lost():
        work = np.empty((0, len(WORK_COLUMNS)), np.int64)
        part = Timeline(work, (), host, tokens=counted)
    else:
        part = Timeline.from_recording(recorder.drain(), host, counted)
    for session in _running:
        session.parts.append(part)


def _device_was_lost() -> bool:
    """Whether this is a child forked after first use: the recorder holds the parent's work."""
    from gapless import _C

    return _C.is_in_bad_fork()


def _synchronize() -> None:
    import torch

    if torch.accelerator.is_available():
        for device in range(torch.accelerator.device_count()):
            torch.accelerator.synchronize(device)


def _write(timeline: Timeline, folder: Path, trace: bool) -> _Written:
    path = save_in(timeline, folder)
    if not trace:
        return _Written(timeline, path, None)
    from gapless.profile.trace import write_trace

    trace_path = path.with_name(path.stem.replace("timeline-", "trace-", 1) + ".pftrace")
    write_trace(trace_path, [timeline])
    return _Written(timeline, path, trace_path)


def _forget_after_fork() -> None:
    # The parent's record is the parent's to write. The lock may have been held by a lost thread.
    global _lock
    _lock = Lock()
    tokens.forget_after_fork()
    for session in _running:
        session.parts.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
