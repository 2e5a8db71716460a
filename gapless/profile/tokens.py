"""Counting tokens while a recording runs, so that idle time can be told in tokens per second."""

import threading

_lock = threading.Lock()
_on = False
_count = 0


def count_tokens(count: int) -> None:
    """Say that a step gave so many tokens, of all its sequences together.

    It does nothing while nothing is recorded.

    Raises:
        ValueError: ``count`` is negative.
    """
    global _count
    if not _on:
        return
    if count < 0:
        raise ValueError(f"count is {count} tokens; it cannot be negative")
    with _lock:
        _count += count


def start() -> None:
    """Count from now on, from 0."""
    global _on, _count
    with _lock:
        _on, _count = True, 0


def stop() -> None:
    """Count no more."""
    global _on
    _on = False


def drain() -> int:
    """How many were counted since the last call."""
    global _count
    with _lock:
        count, _count = _count, 0
    return count


def forget_after_fork() -> None:
    """In a forked child: count from 0, with a lock that no lost thread holds."""
    global _lock, _count
    _lock = threading.Lock()
    _count = 0
