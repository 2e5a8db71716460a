"""The process that workers come from.

It is started afresh, so that nothing in it has used the device, and imports torch and gapless once.
For each executor it forks a process that loads what that executor's workers need and forks them. So
a second executor, or one in the place of a failed one, starts in the time that its load takes.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import select
import signal
import socket
from types import TracebackType

from gapless.pipeline.process_death import die_with_parent
from gapless.pipeline.worker_watch import watch_workers

_END_S = 10.0


class WarmParent:
    """A process to fork workers from, for several executors.

    The main module of the program is imported in it, as by ``multiprocessing``'s ``spawn``: make it
    under ``if __name__ == "__main__":`` in a script.
    """

    def __init__(self) -> None:
        self._process: multiprocessing.process.BaseProcess | None = None
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = multiprocessing.get_context("spawn").Process(
                target=_fork_watches,
                args=(theirs, os.getpid()),
                name="gapless warm parent",
                daemon=True,
            )
            process.start()
        self._process = process

    def connect(self) -> socket.socket:
        """A connection to a new process that forks the workers of one executor.

        Raises:
            RuntimeError: the warm parent has ended.
        """
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._requests, [b"watch"], [theirs.fileno()])
            except OSError as error:
                mine.close()
                raise RuntimeError(
                    "the process that workers are forked from has ended; make a new WarmParent"
                ) from error
        return mine

    @property
    def exit_code(self) -> int | None:
        """Minus the signal's number where one killed it; None while it lives."""
        return None if self._process is None else self._process.exitcode

    def close(self) -> None:
        """End it; executors that still use it end as well. Closing twice is harmless."""
        self._requests.close()
        if self._process is None:
            return
        self._process.join(timeout=_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> WarmParent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _fork_watches(requests: socket.socket, caller_id: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that are forked here
    caller = os.pidfd_open(caller_id)
    gc.collect()
    gc.freeze()  # a collection in a child must not write to memory that all share
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    poll.register(caller, select.POLLIN)
    parent = os.getpid()
    while caller not in (ready := dict(poll.poll())):
        if requests.fileno() not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(requests, 64, 1)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(parent)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                requests.close()
                watch_workers(socket.socket(fileno=descriptors[0]), caller)
            finally:
                os._exit(0)
        os.close(descriptors[0])
