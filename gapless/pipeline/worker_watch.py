"""The process that forks the workers of one executor, and watches them.

It has imported what the workers need, and they share that memory. Where a worker dies, it ends the
others and tells the caller; where the caller dies, it ends them all; and where it dies itself, the
system does, since they asked for that.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from gapless.pipeline.process_death import die_with_parent
from gapless.pipeline.worker_channel import Channel, Kind, unpacked
from gapless.pipeline.worker_process import Load, WorkerSettings, run_worker

_MOST_BYTES = 64 << 10


def tell(control: socket.socket, event: str, **values: Any) -> None:
    """Send an event over the control connection; where nobody listens any more, drop it."""
    with suppress(OSError):
        control.send(json.dumps({"event": event, **values}).encode()[:_MOST_BYTES])


def hear(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for an event, and the descriptors that came with it. ``closed``: nobody is there."""
    try:
        data, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 1)
    except ConnectionResetError:
        data, descriptors = b"", []
    event: dict[str, Any] = json.loads(data) if data else {"event": "closed"}
    return event, descriptors


def watch_workers(control: socket.socket, caller: int) -> None:
    """Fork the workers of one executor as asked, and watch them until all have ended.

    Args:
        control: the connection to the executor, whose first message says what to load.
        caller: a descriptor of the process that must live.
    """
    try:
        request = Channel(control, 0, 1).receive()
        if request is None or request.kind != Kind.CALL:
            return
        settings: WorkerSettings
        settings, load_body = unpacked(request.body)
        os.environ.update(settings.environment)
        load: Load = unpacked(load_body)
        if settings.world_size > 2:
            # What workers may come to import by themselves: some operators take the one at their
            # first call, which is two seconds, and recordings are summed up with the other.
            importlib.import_module("torch._dynamo")
            importlib.import_module("gapless.profile")
    except BaseException:
        tell(control, "failed", traceback=traceback.format_exc()[-8000:])
        return
    gc.collect()
    gc.freeze()  # a collection in a worker must not write to memory that all share
    tell(control, "ready")
    _Watch(control, caller, load, settings).run()


class _Watch:
    def __init__(
        self, control: socket.socket, caller: int, load: Load, settings: WorkerSettings
    ) -> None:
        self._control = control
        self._caller = caller
        self._load = load
        self._settings = settings
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(caller, select.POLLIN)
        self._workers: dict[int, tuple[int, int]] = {}  # pidfd to pid and rank
        self._is_stopping = False
        self._until: float | None = None
        self._is_connected = True

    def run(self) -> None:
        while self._is_connected or self._workers:
            timeout_ms = None
            if self._until is not None:
                timeout_ms = max(0, int((self._until - time.monotonic()) * 1000))
            ready = self._poll.poll(timeout_ms)
            if not ready and self._until is not None:
                self._until = None
                tell(
                    self._control, "late", ranks=sorted(rank for _, rank in self._workers.values())
                )
                self._kill()
            for descriptor, _ in ready:
                if descriptor in self._workers:
                    self._reap(descriptor)
                elif descriptor == self._caller:
                    self._poll.unregister(descriptor)
                    self._lose_caller()
                elif self._is_connected:
                    self._obey()
            if self._is_stopping and not self._workers:
                break
        tell(self._control, "ended")

    def _obey(self) -> None:
        event, descriptors = hear(self._control)
        if event["event"] == "fork":
            self._fork(int(event["rank"]), descriptors[0])
        elif event["event"] == "stop":
            self._is_stopping = True
            self._until = time.monotonic() + float(event["timeout_s"])
        else:
            self._lose_caller()

    def _lose_caller(self) -> None:
        if self._is_connected:
            self._poll.unregister(self._control)
        self._is_connected = False
        self._is_stopping = True
        self._kill()

    def _fork(self, rank: int, descriptor: int) -> None:
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(descriptor)
            tell(self._control, "refused", rank=rank, text=str(error))
            self._is_stopping = True
            self._kill()
            return
        if pid == 0:
            self._be_worker(rank, descriptor, parent)
        os.close(descriptor)
        watched = os.pidfd_open(pid)
        self._workers[watched] = (pid, rank)
        self._poll.register(watched, select.POLLIN)
        tell(self._control, "forked", rank=rank, pid=pid)

    def _be_worker(self, rank: int, descriptor: int, parent: int) -> NoReturn:
        code = 1
        try:
            die_with_parent(parent)
            self._control.close()
            end = socket.socket(fileno=descriptor)
            channel = Channel(end, rank, self._settings.most_posted)
            code = run_worker(rank, channel, self._load, self._settings)
            with suppress(Exception):
                atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _reap(self, descriptor: int) -> None:
        pid, rank = self._workers.pop(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        # It may have been told to stop, and we have not heard of that yet.
        if not self._is_stopping and select.select([self._control], [], [], 0)[0]:
            self._obey()
        if self._is_stopping:
            return
        self._is_stopping = True
        tell(self._control, "died", rank=rank, exit_code=os.waitstatus_to_exitcode(status))
        self._kill()

    def _kill(self) -> None:
        for pid, _ in self._workers.values():
            os.kill(pid, signal.SIGKILL)
