"""What reaches the caller when a worker process fails or dies."""

from __future__ import annotations

import signal
from typing import Any

from gapless.errors import GaplessError


class WorkerError(GaplessError):
    """A worker failed or died, and the others were ended. ``__cause__`` is its error, if any.

    Attributes:
        rank: which worker; -1 for the process that the workers are forked from.
        step: in which step, as numbered by ``dispatch``; None outside any, or where it died.
        worker_traceback: its traceback as text; empty where it died without one.
        exit_code: its exit code, minus the signal's number where one killed it; None while unknown.
    """

    def __init__(
        self,
        text: str,
        rank: int,
        step: int | None = None,
        worker_traceback: str = "",
        exit_code: int | None = None,
    ) -> None:
        super().__init__(text)
        self.rank = rank
        self.step = step
        self.worker_traceback = worker_traceback
        self.exit_code = exit_code
        if worker_traceback:
            self.add_note(f"in worker {rank}:\n{worker_traceback.rstrip()}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (
            str(self),
            self.rank,
            self.step,
            self.worker_traceback,
            self.exit_code,
        )


def death_text(who: str, exit_code: int) -> str:
    """What to say of a process that ended without saying anything itself.

    Args:
        who: such as ``worker 3``.
        exit_code: minus the signal's number where one killed it.
    """
    if exit_code >= 0:
        return f"{who} ended with exit code {exit_code} without an error of its own"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = "; the system may be out of memory" if name == "SIGKILL" else ""
    return f"{who} was killed by {name}{hint}"
