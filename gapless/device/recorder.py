"""The native timeline recorder: what each stream ran, and when."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gapless import _C

COLUMNS = (
    "device",
    "stream",
    "work",
    "step",
    "name_id",
    "kind",
    "submit_ns",
    "start_ns",
    "end_ns",
)
KINDS = ("op", "graph replay", "copy to device", "copy to host", "copy on device", "wait")


@dataclass(frozen=True)
class RecordBatch:
    """Records drained from all streams.

    ``columns`` is int64 ``[n, 9]`` in the order of ``COLUMNS``; times are CLOCK_MONOTONIC, as
    ``time.monotonic_ns()``. ``dropped`` counts the records that the rings had no room for.
    """

    columns: npt.NDArray[np.int64]
    names: tuple[str, ...]
    dropped: int


def start(capacity: int = 65536) -> None:
    """Record from now on, keeping the last ``capacity`` records of each stream.

    Raises:
        ValueError: ``capacity`` below 1.
    """
    if capacity < 1:
        raise ValueError(f"recorder capacity {capacity}: at least 1 record per stream is needed")
    _C.recorder_start(capacity)


def stop() -> None:
    """Stop recording; what was recorded stays until :func:`drain`."""
    _C.recorder_stop()


def is_on() -> bool:
    """Whether submissions are recorded now."""
    return _C.recorder_is_on()


def set_step(step: int) -> None:
    """Say which step this thread's next submissions belong to; -1 for none."""
    _C.set_step(step)


def drain() -> RecordBatch:
    """Take the records of everything that has finished, oldest first per stream."""
    table, names, dropped = _C.recorder_drain()
    return RecordBatch(table.numpy(), tuple(names), dropped)
