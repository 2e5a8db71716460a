"""What compiling did so far in this process, and where it left the compiled path."""

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CompileStatistics:
    """Counts since the process began or ``reset_statistics``.

    ``compiled``: programs that the compiler made. ``loaded``: programs that the artifact cache
    held. ``launches``: runs of programs. ``eager``: calls of graphs that run operator by operator
    instead, by the reason. ``waited``: programs that the caller waited for while they were made,
    although they should have been made in the background.
    """

    compiled: int
    loaded: int
    launches: int
    eager: dict[str, int]
    waited: int = 0


@dataclass
class _Counts:
    compiled: int = 0
    loaded: int = 0
    launches: int = 0
    eager: dict[str, int] = field(default_factory=dict)
    waited: int = 0


_lock = threading.Lock()
_counts = _Counts()


def statistics() -> CompileStatistics:
    """The counts as they are now."""
    with _lock:
        return CompileStatistics(
            _counts.compiled,
            _counts.loaded,
            _counts.launches,
            dict(_counts.eager),
            _counts.waited,
        )


def reset_statistics() -> None:
    """Set all counts to zero."""
    global _counts
    with _lock:
        _counts = _Counts()


def count_program(*, was_cached: bool) -> None:
    """A program was obtained."""
    with _lock:
        if was_cached:
            _counts.loaded += 1
        else:
            _counts.compiled += 1


def count_launch() -> None:
    """A program was launched. Called in the hot path."""
    with _lock:
        _counts.launches += 1


def count_waited() -> None:
    """The caller waits for a program although that should be made in the background."""
    with _lock:
        _counts.waited += 1


def count_eager(reason: str) -> None:
    """A graph ran operator by operator."""
    with _lock:
        _counts.eager[reason] = _counts.eager.get(reason, 0) + 1
