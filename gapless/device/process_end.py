"""The end of the process: the device's last work, and then whatever wants to look back at it."""

import atexit
import multiprocessing.util
import os
import sys
from collections.abc import Callable

from gapless import _C

_EXIT_TIMEOUT_MS = 10_000
_LAST = -100  # after what others have registered, which may still use the device


class _Anchor:
    """What multiprocessing holds its hook by: something that may be weakly referred to."""


_anchor = _Anchor()
_calls: list[Callable[[], None]] = []
_ended_in: int | None = None  # the process that was shut down; a forked child is another


def register() -> None:
    """Shut the device down at exit; to be called once.

    It is before the interpreter goes: a stream's thread must not outlive what its work refers to.
    """
    atexit.register(shut_down)


def after_last_work(call: Callable[[], None]) -> None:
    """Call this once the device's last work has ended, also in children forked from here on.

    What ends by ``os._exit`` or by a signal's default action calls nothing.
    """
    if not _calls:
        # Children of multiprocessing leave without atexit, and forget inherited finalizers.
        multiprocessing.util.register_after_fork(_anchor, _register_in_child)
        _register_in_child(_anchor)
    _calls.append(call)


def shut_down() -> None:
    """Wait, with a limit, for the device's work; report errors that nobody saw; call the calls."""
    global _ended_in
    if _ended_in == os.getpid():
        return
    _ended_in = os.getpid()
    ended = _C.shutdown(_EXIT_TIMEOUT_MS)
    for text in _C.take_unreported_failures():
        print(f"gapless: nobody waited for this error: {text}", file=sys.stderr, flush=True)
    for call in _calls:
        call()
    if not ended:
        print(
            f"gapless: work on the device did not end within {_EXIT_TIMEOUT_MS // 1000} s of the "
            "process's end; leaving without it",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)  # what its thread uses is about to be destroyed


def _register_in_child(_: _Anchor) -> None:
    multiprocessing.util.Finalize(None, shut_down, exitpriority=_LAST)
