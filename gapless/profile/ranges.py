"""Host ranges: what Python was doing, and when, on the clock that the device's recorder uses.

A range is a named stretch of one thread's time. The pipeline marks its own (``schedule``,
``prepare``, ``submit``, ``wait``, ``process``); anybody may mark more::

    with host_range("tokenize"):
        ...

Off, a range costs below 0.3 us, so that it may stay in the hot path. On, about 1 us.
"""

import itertools
import os
import threading
from collections import deque
from dataclasses import dataclass
from time import monotonic_ns
from types import TracebackType
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import numpy.typing as npt

DEFAULT_CAPACITY = 65536
RANGE_COLUMNS = ("thread", "step", "name_id", "start_ns", "end_ns")


@dataclass(frozen=True)
class HostThread:
    """A thread that marked ranges: the kernel's id for it, and its name in Python."""

    native_id: int
    name: str


@dataclass(frozen=True, eq=False)
class HostRanges:
    """Ranges taken out of the recorder, in the order of their ends.

    ``columns`` is int64 ``[n, 5]``, see ``RANGE_COLUMNS``: an index into ``threads``, the step
    (-1: none), an index into ``names``, and start and end in nanoseconds of ``CLOCK_MONOTONIC``.
    ``dropped`` counts older ranges that the bounded buffer had to forget.
    """

    columns: npt.NDArray[np.int64]
    names: tuple[str, ...]
    threads: tuple[HostThread, ...]
    dropped: int


class HostRange(Protocol):
    """What ``host_range`` returns: a context manager that never swallows an exception."""

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


class _Writer:
    """One thread in one recording. It numbers its own ranges, in the order of their appends."""

    __slots__ = ("append", "appended", "number", "taken", "thread")

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.thread = HostThread(threading.get_native_id(), threading.current_thread().name)
        self.append = _records.append
        self.appended = 0
        self.taken = 0  # of these, how many drain has taken out or found forgotten
        _local.writer = self
        _writers[self.number] = self


# writer, number, name, step, start_ns, end_ns. The writer is told by its number: a tuple of
# numbers and text is nothing that the garbage collector has to look through again and again.
_Record = tuple[int, int, str, int, int, int]
_numbers = itertools.count()

# One buffer for all threads: append and popleft are atomic under the GIL, so no lock is taken.
# A full deque forgets its oldest entry; the writers' numbers tell how many were forgotten. One
# count for all threads would not: a thread may be between its number and its append.
_records: deque[_Record] = deque(maxlen=DEFAULT_CAPACITY)
_writers: dict[int, _Writer] = {}
_on = False
_local = threading.local()
_control = threading.Lock()


def append(name: str, step: int, start_ns: int, end_ns: int) -> None:
    """Keep a range of the calling thread that has ended; ``_Marked`` and ``Phases`` do."""
    try:
        writer = _local.writer
    except AttributeError:
        writer = _Writer()
    number = writer.appended
    writer.append((writer.number, number, name, step, start_ns, end_ns))
    writer.appended = number + 1


class _Marked:
    __slots__ = ("name", "start_ns", "step")

    def __init__(self, name: str, step: int) -> None:
        self.name = name
        self.step = step

    def __enter__(self) -> None:
        self.start_ns = monotonic_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        append(self.name, self.step, self.start_ns, monotonic_ns())


class _Unmarked:
    # Calls to methods written in Python would double the cost of a range that is not recorded.
    # Formatting the empty string ignores its arguments, and is falsy: it lets exceptions pass.
    __slots__ = ()
    __enter__: ClassVar[Any] = staticmethod("".format)
    __exit__: ClassVar[Any] = staticmethod("".format)


_unmarked = cast(HostRange, _Unmarked())


def host_range(name: str, step: int = -1) -> HostRange:
    """Mark what the calling thread does inside the ``with`` block.

    Args:
        name: what it does, one word for preference; gaps are named by it.
        step: the step that it does this for; -1 for none.
    """
    return _Marked(name, step) if _on else _unmarked


def start(capacity: int = DEFAULT_CAPACITY) -> None:
    """Forget what was recorded and record from now on, the newest ``capacity`` ranges at most.

    Raises:
        ValueError: ``capacity`` is below 1.
        RuntimeError: ranges are being recorded already.
    """
    global _records, _writers, _local, _on
    if capacity < 1:
        raise ValueError(f"capacity is {capacity} ranges; it must be at least 1")
    with _control:
        if _on:
            raise RuntimeError("host ranges are being recorded already; stop that recording first")
        # In this order: a thread that is seen in the new records is among the new writers.
        _writers = {}
        _records = deque(maxlen=capacity)
        _local = threading.local()  # every thread starts anew
        _on = True


def stop() -> None:
    """Record no more; what was recorded stays until ``drain`` or the next ``start``."""
    global _on
    _on = False


def is_on() -> bool:
    """Whether ranges are being recorded."""
    return _on


def drain() -> HostRanges:
    """Take out what was recorded since the last ``drain``; ranges still open are not in it."""
    rows: list[tuple[int, int, int, int, int]] = []
    names: dict[str, int] = {}
    threads: dict[HostThread, int] = {}
    dropped = 0
    with _control:
        # Before the length: what these count is among the first so many records, or forgotten.
        appended = [(writer, writer.appended) for writer in tuple(_writers.values())]
        # The length is read once: other threads may append for as long as this loop runs.
        for _ in range(len(_records)):
            try:
                of, number, name, step, start_ns, end_ns = _records.popleft()
            except IndexError:
                break
            writer = _writers[of]
            dropped += number - writer.taken
            writer.taken = number + 1
            thread_id = threads.setdefault(writer.thread, len(threads))
            name_id = names.setdefault(name, len(names))
            rows.append((thread_id, step, name_id, start_ns, end_ns))
        for writer, count in appended:
            dropped += max(0, count - writer.taken)
            writer.taken = max(count, writer.taken)
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), len(RANGE_COLUMNS))
    return HostRanges(columns, tuple(names), tuple(threads), dropped)


def _forget_after_fork() -> None:
    # The parent's ranges are the parent's to write, and this thread has a new id. The lock may
    # have been held by a thread that does not exist here.
    global _local, _control, _records, _writers
    _local = threading.local()
    _control = threading.Lock()
    _records = deque(maxlen=_records.maxlen)
    _writers = {}


os.register_at_fork(after_in_child=_forget_after_fork)
