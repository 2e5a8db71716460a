"""The thread that makes programs, one after the other, and what is waiting for it.

A thread of its own even where the caller waits: inside a compiled function the calling thread's
dispatcher is set up for running graphs, and tracing needs it as it was.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

Made = TypeVar("Made")

_thread = ThreadPoolExecutor(1, thread_name_prefix="gapless-compile")
_local = threading.local()
_lock = threading.Lock()
_pending: set[Future[Any]] = set()


def begin(make: Callable[[], Made]) -> Future[Made]:
    """Run ``make`` on the thread. A process that ends first finishes what was begun."""
    future = _thread.submit(make)
    with _lock:
        _pending.add(future)
    future.add_done_callback(_done)
    return future


def use(future: Future[Made]) -> None:
    """Note that the current call would have used what is being made."""
    for collected in getattr(_local, "collecting", ()):
        collected.append(future)


@contextmanager
def collecting() -> Iterator[list[Future[Any]]]:
    """Collects what this thread's calls would have used and what was not made yet."""
    stack = _local.__dict__.setdefault("collecting", [])
    found: list[Future[Any]] = []
    stack.append(found)
    try:
        yield found
    finally:
        stack.remove(found)


def pending() -> int:
    """Programs that are being made or wait for it."""
    with _lock:
        return len(_pending)


def wait_until_compiled(timeout_s: float | None = None) -> None:
    """Wait until no program is being made.

    Raises:
        TimeoutError: it took longer.
        Exception: a program could not be made; the first such error.
    """
    while True:
        with _lock:
            waiting = list(_pending)
        if not waiting:
            return
        waiting[0].result(timeout_s)


def _done(future: Future[Any]) -> None:
    with _lock:
        _pending.discard(future)


def tell_failure(future: Future[Any]) -> None:
    """Print why a program could not be made, for a caller that may not ask again."""

    def tell(done: Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            print(f"gapless: {error}; the graph runs operator by operator", file=sys.stderr)

    future.add_done_callback(tell)
