"""An executor's worker processes: started, told of failures, and ended, all of them together."""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from gapless.pipeline.captured_step import PackedLayout
from gapless.pipeline.pipeline_warning import warn_caller
from gapless.pipeline.warm_parent import WarmParent
from gapless.pipeline.worker_channel import Channel, Kind, Message, packed, unpacked
from gapless.pipeline.worker_error import WorkerError, death_text
from gapless.pipeline.worker_process import Failure, WorkerSettings
from gapless.pipeline.worker_watch import hear, tell

if TYPE_CHECKING:
    from gapless._C import StepCaller, StepExchange

Layouts = tuple[PackedLayout, PackedLayout]
_AFTER_DEATH_S = 10.0  # for the processes that are being killed to be gone


class WorkerGroup:
    """Forks workers from a warm parent. The first failure ends them all.

    Args:
        settings: what the workers have in common.
        load_body: ``load``, packed.
        timeout_s: how long the imports and ``load`` may take.
        parent: where to fork the workers from; None starts one for this group alone.

    Attributes:
        channels: to the workers, by rank.
        pids: their process ids, by rank.
        layouts: of the inputs and the results, where the step is captured.
        exchange, caller: through which captured steps go, and this end of it.
        error: what ended the workers.

    Raises:
        WorkerError: a worker failed or died while it loaded.
        TimeoutError: the workers were not ready in time.
        ValueError: the workers' captured steps differ.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        load_body: bytes,
        timeout_s: float,
        parent: WarmParent | None,
    ) -> None:
        self.channels: list[Channel] = []
        self.pids: list[int] = []
        self.layouts: Layouts | None = None
        self.exchange: StepExchange | None = None
        self.caller: StepCaller | None = None
        self.error: WorkerError | None = None
        self.is_open = False  # until it is complete
        self._settings = settings
        self._owns_parent = parent is None
        self._parent = WarmParent() if parent is None else parent
        self._control = self._parent.connect()
        self.is_open = True
        try:
            self._start(load_body, time.monotonic() + timeout_s, timeout_s)
        except BaseException:
            self.abandon()
            raise

    def has_news(self) -> bool:
        """Whether the process that forked the workers has something to say: one has died."""
        return bool(select.select([self._control], [], [], 0)[0])

    def ring(self, *ranks: int) -> None:
        """Tell workers, by default all, that a message lies in their sockets."""
        if self.exchange is not None:
            self.exchange.call(list(ranks or range(len(self.channels))))

    def stop(self, timeout_s: float) -> None:
        """Let the workers finish what is in flight, and end them.

        Warns:
            PipelineWarning: a worker failed meanwhile, or had to be killed.
        """
        self.is_open = False
        tell(self._control, "stop", timeout_s=timeout_s)
        for channel in self.channels:
            with suppress(OSError):
                channel.send(Kind.STOP)
        self.ring()
        late: list[int] = []
        while (event := hear(self._control)[0])["event"] not in ("ended", "closed"):
            if event["event"] == "late":
                late = event["ranks"]
        failures = [found for channel in self.channels if (found := _failure_in(channel))]
        self.abandon()
        if late:
            warn_caller(
                f"workers {late} did not end within {timeout_s} s of shutdown() and were killed"
            )
        for _, failure in failures[:1]:
            warn_caller(f"a worker failed while it was shut down: {failure.text}")

    def fail(
        self,
        message: Message | None = None,
        *,
        event: dict[str, Any] | None = None,
        skipped_rank: int | None = None,
    ) -> NoReturn:
        """Find out what has happened, end everything, and raise it."""
        failures = []
        if message is not None and message.kind == Kind.ERROR and message.body:
            failures.append((message, unpacked(message.body)))
        if skipped_rank is not None:
            # Its device failed, and it has not looked yet.
            channel = self.channels[skipped_rank]
            with suppress(OSError):
                channel.send(Kind.STOP)
            self.ring(skipped_rank)
        died: dict[str, Any] | None = None
        until = time.monotonic() + _AFTER_DEATH_S
        while event is None or event["event"] not in ("ended", "closed"):
            if event is not None and event["event"] in ("died", "refused"):
                died = died or event
            if not select.select([self._control], [], [], max(0.0, until - time.monotonic()))[0]:
                break
            event, _ = hear(self._control)
        for channel in self.channels:
            if found := _failure_in(channel):
                failures.append(found)
        self.abandon()
        error = _worker_error(failures, died, self._parent.exit_code)
        self.error = error
        raise error from error.__cause__

    def abandon(self) -> None:
        """End whatever still runs, at once; twice is harmless."""
        self.is_open = False
        if self._control.fileno() < 0:
            return
        # Which ends the workers. When that is done, the other end is closed, too.
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        until = time.monotonic() + _AFTER_DEATH_S
        while select.select([self._control], [], [], max(0.0, until - time.monotonic()))[0]:
            if hear(self._control)[0]["event"] == "closed":
                break
        self._control.close()
        for channel in self.channels:
            channel.close()
        if self._owns_parent:
            self._parent.close()

    def _start(self, load_body: bytes, deadline: float, timeout_s: float) -> None:
        with suppress(OSError):  # that it is gone is heard below
            Channel(self._control, 0, 1).send(Kind.CALL, body=packed((self._settings, load_body)))
        self._await(self._control.fileno(), deadline, "importing what load needs", timeout_s)
        event, _ = hear(self._control)
        if event["event"] == "failed":
            raise WorkerError(
                "load was not found in a new process; it must be a function at the top of a "
                "module that can be imported there, and in a script the executor is made under "
                'if __name__ == "__main__":',
                -1,
                worker_traceback=event["traceback"],
            )
        if event["event"] != "ready":
            self.fail()
        for rank in range(self._settings.world_size):
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.channels.append(Channel(mine, rank, self._settings.most_posted))
            request = f'{{"event": "fork", "rank": {rank}}}'
            with theirs:
                try:
                    socket.send_fds(self._control, [request.encode()], [theirs.fileno()])
                except OSError:
                    self.fail()
            event, _ = hear(self._control)
            if event["event"] != "forked":
                self.fail(event=event)
            self.pids.append(int(event["pid"]))
        for rank, channel in enumerate(self.channels):
            self._await(channel.fileno(), deadline, f"load({rank})", timeout_s)
            message = channel.receive()
            if message is None or message.kind != Kind.READY:
                self.fail(message)
            layouts = unpacked(message.body)
            if rank > 0 and layouts != self.layouts:
                raise ValueError(
                    f"load({rank}) returned a step of other inputs or results than load(0); "
                    "captured steps of one executor are alike in dtypes and shapes"
                )
            self.layouts = layouts
        if self.layouts is not None:
            self._open_exchange(*self.layouts)

    def _open_exchange(self, inputs: PackedLayout, results: PackedLayout) -> None:
        from gapless._C import StepCaller, StepExchange

        sizes = (len(self.channels), self._settings.most_posted, inputs.size, results.size)
        memory = os.memfd_create("gapless steps", os.MFD_CLOEXEC)
        try:
            os.ftruncate(memory, StepExchange.file_bytes(*sizes))
            self.exchange = StepExchange(memory, *sizes)
            self.caller = StepCaller(self.exchange, inputs.parts, results.parts)
            for channel in self.channels:
                with suppress(OSError):  # that it is gone is noticed at the first step
                    channel.send_file(memory)
        finally:
            os.close(memory)

    def _await(self, descriptor: int, deadline: float, what: str, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(
                f"{what} did not end within {timeout_s} s (start_timeout_s); the workers were ended"
            )


def _failure_in(channel: Channel) -> tuple[Message, Failure] | None:
    """The error that a worker sent before it ended, among what was not read."""
    while True:
        try:
            message = channel.receive(blocking=False)
        except OSError:
            return None
        if message is None or message.kind == Kind.CLOSED:
            return None
        if message.kind == Kind.ERROR and message.body:
            return message, unpacked(message.body)


def _worker_error(
    failures: list[tuple[Message, Failure]], died: dict[str, Any] | None, parent_code: int | None
) -> WorkerError:
    if failures:
        # The others may have failed because of the first.
        message, failure = min(failures, key=lambda found: found[0].sent_ns)
        step = None if message.step < 0 else message.step
        where = "while it loaded, or between steps" if step is None else f"in step {step}"
        error = WorkerError(
            f"worker {message.rank} failed {where}: {failure.text}",
            message.rank,
            step,
            failure.traceback,
        )
        with suppress(Exception):
            error.__cause__ = unpacked(failure.error) if failure.error else None
        return error
    if died is not None and died["event"] == "refused":
        return WorkerError(
            f"worker {died['rank']} could not be forked: {died['text']}; ask for fewer workers",
            died["rank"],
        )
    if died is not None:
        rank, code = died["rank"], died["exit_code"]
        return WorkerError(death_text(f"worker {rank}", code), rank, exit_code=code)
    text = "the process that the workers are forked from has died, and they with it"
    return WorkerError(text, -1, exit_code=parent_code)
