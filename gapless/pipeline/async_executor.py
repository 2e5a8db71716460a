"""The same step in many processes, each keeping a device of its own busy.

    with AsyncExecutor(4, load) as executor:  # load(rank) returns the step
        for results in executor.map(batches):  # results[rank]
            ...

Each worker runs ahead of what the caller has read, as ``Pipeline`` does in one process.
docs/executor.md says what a step costs, and what happens when a worker dies.
"""

from __future__ import annotations

import select
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn

import torch

from gapless.pipeline.captured_step import PackedLayout
from gapless.pipeline.pipeline_warning import warn_caller
from gapless.pipeline.rendezvous import free_port
from gapless.pipeline.warm_parent import WarmParent
from gapless.pipeline.worker_channel import (
    HEADER,
    MOST_ON_THEIR_WAY,
    Channel,
    Kind,
    Message,
    packed,
    step_message,
    unpacked,
)
from gapless.pipeline.worker_error import WorkerError, death_text
from gapless.pipeline.worker_process import Failure, WorkerSettings
from gapless.pipeline.worker_watch import hear, tell

MOST_WORKERS = 1024
_SENT_NS = slice(16, 24)  # within a header
_AFTER_DEATH_S = 10.0  # for the processes that are being killed to be gone


class AsyncExecutor:
    """Worker processes that run steps, double-buffered.

    The workers are forked from one process that has imported what ``load`` needs, so that what they
    do not write to is in memory once. One thread uses an executor at a time.

    Args:
        world_size: how many workers.
        load: called in each worker with its rank. Returns the step: a function of one input, as
            ``Pipeline`` takes it, or a ``CapturedStep``, which costs a quarter of that. It
            is found by name in the new process, so it is a function of a module, or a
            ``functools.partial`` of one.
        depth: steps in flight at most: dispatched and not collected. 1 is sequential.
        device: where the steps run, as for ``Pipeline``; ``{rank}`` in it stands for the rank.
        environment: variables for the workers, set before the device is first used.
        port: sets ``MASTER_PORT``, ``RANK`` and the like in the workers, so that ``load`` may call
            ``torch.distributed.init_process_group``; 0 takes any free port.
        start_timeout_s: how long the imports and ``load`` may take.
        parent: where to fork the workers from; None starts one for this executor alone, which takes
            some seconds.

    Raises:
        ValueError: a number is out of range.
        TypeError: ``load`` cannot be sent to another process.
        UsageError: the port is in use.
        WorkerError: a worker failed or died while it loaded.
        TimeoutError: the workers were not ready in time.
    """

    def __init__(
        self,
        world_size: int,
        load: Callable[[int], Any],
        depth: int = 2,
        *,
        device: torch.device | str = "auto",
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
        start_timeout_s: float = 600,
        parent: WarmParent | None = None,
    ) -> None:
        self._is_open = False  # until it is complete: __del__ runs also if this raises
        _require_whole("world_size", world_size, 1, MOST_WORKERS, "one worker per device")
        _require_whole("depth", depth, 1, MOST_ON_THEIR_WAY, "2 is double-buffered")
        if not callable(load):
            raise TypeError(f"load must be a function of the rank, got {type(load).__name__}")
        try:
            load_body = packed(load)
        except TypeError as error:
            raise TypeError(
                f"{error}; load must be a function at the top of a module, or a functools.partial "
                "of one, since the workers find it by its name"
            ) from error
        self._settings = WorkerSettings(
            world_size, depth, str(device), dict(environment or {}), free_port(port)
        )
        self._channels: list[Channel] = []
        self._pids: list[int] = []
        self._error: WorkerError | None = None
        self._dispatched = self._collected = 0
        self._is_dispatching = False
        self._partial: list[Any] = []  # results of the step that is being collected
        self._sent_ns: list[int] = [0] * world_size
        self._row: memoryview | None = None
        self._layouts: tuple[PackedLayout, PackedLayout] | None = None
        self._owns_parent = parent is None
        self._parent = WarmParent() if parent is None else parent
        self._control = self._parent.connect()
        self._is_open = True
        try:
            self._start(load_body, time.monotonic() + start_timeout_s, start_timeout_s)
        except BaseException:
            self._abandon()
            raise

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return self._settings.world_size

    @property
    def depth(self) -> int:
        """How many steps may be in flight."""
        return self._settings.depth

    @property
    def in_flight(self) -> int:
        """Steps that were dispatched and not collected."""
        return self._dispatched - self._collected

    @property
    def device(self) -> str:
        """Where the steps run, as it was given."""
        return self._settings.device

    @property
    def sent_ns(self) -> list[int]:
        """By rank, when the results that were collected last were sent, in ``CLOCK_MONOTONIC``."""
        return list(self._sent_ns)

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' process ids, by rank."""
        return tuple(self._pids)

    @property
    def port(self) -> int | None:
        """Where the workers meet for ``torch.distributed``; None: nowhere."""
        return self._settings.port

    def dispatch(self, inputs: Sequence[Any]) -> int:
        """Submit one step to all workers, and return its number; the caller does not wait.

        Args:
            inputs: one per rank; trees of tensors on the host and anything that can be pickled. For
                a ``CapturedStep`` a tensor, or a sequence of tensors, as it was captured with.

        Raises:
            RuntimeError: ``depth`` steps are in flight, so that one has to be collected first; or
                the executor is shut down.
            ValueError: not one input per rank, or another shape than was captured.
            TypeError: an input cannot be sent.
            WorkerError: a worker failed or died.
        """
        if len(inputs) != self.world_size:
            raise ValueError(
                f"{len(inputs)} inputs were dispatched to {self.world_size} workers; give one per "
                "rank, or broadcast() one to all"
            )
        self._require_room("dispatch")
        return self._send([self._body(each) for each in inputs])

    def broadcast(self, item: Any) -> int:
        """Submit one step with the same input to all workers; see ``dispatch``."""
        self._require_room("broadcast")
        body = self._body(item)
        if len(body) > self._channels[0].inline_bytes:
            return self._send([body] * self.world_size)
        return self._send_to_all(step_message(self._dispatched, body))

    def collect(self) -> list[Any]:
        """Wait for the oldest step that was not collected; returns its results by rank.

        Of a ``CapturedStep`` a result is a tensor, or a tuple of tensors.

        Raises:
            RuntimeError: nothing was dispatched; or the executor is shut down.
            WorkerError: a worker failed or died; the others were ended.
        """
        self._require_open("collect")
        if not self.in_flight:
            raise RuntimeError("no result is on its way; dispatch a step first")
        results = self._collect_any() if self._layouts is None else self._collect_captured()
        self._collected += 1
        return results

    def map(self, inputs: Iterable[Any]) -> Iterator[list[Any]]:
        """Broadcast each input; yields the results in order, ``depth - 1`` steps behind.

        Raises:
            RuntimeError: steps are in flight; or the executor is shut down.
        """
        self._require_open("map")
        if self.in_flight:
            raise RuntimeError(f"{self.in_flight} step(s) were not collected; do so before map()")
        return self._mapped(iter(inputs))

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run a function in each worker, between steps, and return what it returned by rank.

        Args:
            function: found by its name in the workers, as ``load`` is.
            arguments: the same for all.

        Raises:
            RuntimeError: steps are in flight; or the executor is shut down.
            WorkerError: it failed in a worker.
        """
        self._require_open("call")
        if self.in_flight:
            raise RuntimeError(f"{self.in_flight} step(s) were not collected; do so before call()")
        body = packed((function, arguments))
        try:
            for channel in self._channels:
                if self._layouts is not None:
                    channel.announce(Kind.CALL)
                channel.send(Kind.CALL, body=body)
        except OSError:
            self._fail()
        answers = []
        for channel in self._channels:
            if self._layouts is not None:
                channel.receive()  # the announcement
            message = channel.receive()
            if message is None or message.kind != Kind.RETURNED:
                self._fail(message)
            answers.append(unpacked(message.body))
        return answers

    def shutdown(self, timeout_s: float = 30) -> None:
        """Let the workers finish what is in flight, drop the results, and end them.

        Args:
            timeout_s: after which workers that do not end are killed.

        Warns:
            PipelineWarning: a worker failed meanwhile, or had to be killed.
        """
        if not self._is_open:
            return
        self._is_open = False
        tell(self._control, "stop", timeout_s=timeout_s)
        for channel in self._channels:
            with suppress(OSError):
                if self._layouts is not None:
                    channel.announce(Kind.STOP)
                channel.send(Kind.STOP)
        late: list[int] = []
        while (event := hear(self._control)[0])["event"] not in ("ended", "closed"):
            if event["event"] == "late":
                late = event["ranks"]
        failures = [found for channel in self._channels if (found := _failure_in(channel))]
        self._abandon()
        if late:
            warn_caller(
                f"workers {late} did not end within {timeout_s} s of shutdown() and were killed"
            )
        for _, failure in failures[:1]:
            warn_caller(f"a worker failed while it was shut down: {failure.text}")

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
            self._fail()
        for rank in range(self.world_size):
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._channels.append(Channel(mine, rank, self.depth))
            request = f'{{"event": "fork", "rank": {rank}}}'
            with theirs:
                try:
                    socket.send_fds(self._control, [request.encode()], [theirs.fileno()])
                except OSError:
                    self._fail()
            event, _ = hear(self._control)
            if event["event"] != "forked":
                self._fail(event=event)
            self._pids.append(int(event["pid"]))
        for rank, channel in enumerate(self._channels):
            self._await(channel.fileno(), deadline, f"load({rank})", timeout_s)
            message = channel.receive()
            if message is not None and message.kind == Kind.ERROR and not message.body:
                message = channel.receive()
            if message is None or message.kind != Kind.READY:
                self._fail(message)
            self._layouts = unpacked(message.body)

    def _await(self, descriptor: int, deadline: float, what: str, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(
                f"{what} did not end within {timeout_s} s (start_timeout_s); the workers were ended"
            )

    def _body(self, item: Any) -> bytes:
        return packed(item) if self._layouts is None else self._layouts[0].pack(item)

    def _send(self, bodies: list[bytes]) -> int:
        self._is_dispatching = True
        step = self._dispatched
        try:
            for channel, body in zip(self._channels, bodies, strict=True):
                channel.send(Kind.STEP, step, body)
        except OSError:
            self._fail()
        self._dispatched += 1
        self._is_dispatching = False
        return step

    def _send_to_all(self, message: bytes) -> int:
        self._is_dispatching = True
        try:
            for channel in self._channels:
                channel.send_step(message)
        except OSError:
            self._fail()
        self._dispatched += 1
        self._is_dispatching = False
        return self._dispatched - 1

    def _collect_any(self) -> list[Any]:
        results = self._partial
        while len(results) < self.world_size:
            message = self._channels[len(results)].receive()
            if message is None or message.kind != Kind.RESULT:
                self._fail(message)
            self._sent_ns[len(results)] = message.sent_ns
            results.append(unpacked(message.body))
        self._partial = []
        return results

    def _collect_captured(self) -> list[Any]:
        assert self._layouts is not None
        layout = self._layouts[1]
        size = HEADER.size + layout.size
        rows = self._partial
        if not rows:
            self._row = memoryview(bytearray(size * self.world_size))
        assert self._row is not None
        kind = Kind.RESULT
        while len(rows) < self.world_size:
            rank = len(rows)
            row = self._row[rank * size : (rank + 1) * size]
            if self._channels[rank].receive_into(row) != size:
                kind = Kind(HEADER.unpack_from(row)[0])
                self._fail(skipped_rank=rank if kind == Kind.SKIPPED else None)
            rows.append(None)
        whole = torch.frombuffer(self._row, dtype=torch.uint8).view(self.world_size, size)
        self._sent_ns = whole[:, _SENT_NS].view(torch.int64).squeeze(1).tolist()
        # A header is no multiple of every dtype's size, so the bodies are moved once.
        parts = layout.views(whole[:, HEADER.size :].contiguous())
        self._partial = []
        self._row = None
        by_rank = [part.unbind(0) for part in parts]
        return list(by_rank[0]) if len(by_rank) == 1 else list(zip(*by_rank, strict=True))

    def _mapped(self, inputs: Iterator[Any]) -> Iterator[list[Any]]:
        has_ended = False
        try:
            while True:
                while not has_ended and self.in_flight < self.depth:
                    try:
                        item = next(inputs)
                    except StopIteration:
                        has_ended = True
                        break
                    self.broadcast(item)
                if not self.in_flight:
                    return
                yield self.collect()
        finally:
            while self._is_open and self.in_flight:  # after a break
                self.collect()

    def _fail(
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
            channel = self._channels[skipped_rank]
            with suppress(OSError):
                channel.announce(Kind.STOP)
                channel.send(Kind.STOP)
        died: dict[str, Any] | None = None
        until = time.monotonic() + _AFTER_DEATH_S
        while event is None or event["event"] not in ("ended", "closed"):
            if event is not None and event["event"] in ("died", "refused"):
                died = died or event
            if not select.select([self._control], [], [], max(0.0, until - time.monotonic()))[0]:
                break
            event, _ = hear(self._control)
        for channel in self._channels:
            if found := _failure_in(channel):
                failures.append(found)
        self._abandon()
        error = _worker_error(failures, died, self._parent.exit_code)
        self._error = error
        raise error from error.__cause__

    def _abandon(self) -> None:
        """End whatever still runs, at once; twice is harmless."""
        self._is_open = False
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
        for channel in self._channels:
            channel.close()
        if self._owns_parent:
            self._parent.close()

    def _require_room(self, call: str) -> None:
        self._require_open(call)
        if self.in_flight >= self.depth:
            raise RuntimeError(
                f"{self.in_flight} step(s) are in flight and the depth is {self.depth}; collect() "
                "one before dispatching more, or make the executor deeper"
            )

    def _require_open(self, call: str) -> None:
        if self._error is not None:
            raise RuntimeError(
                f"{call}() was called after this: {self._error}; make a new executor"
            )
        if not self._is_open:
            raise RuntimeError(f"{call}() was called on an executor that is shut down")
        if self._is_dispatching:
            raise RuntimeError(
                "a dispatch was interrupted half-way, so that some workers have a step that others "
                "have not; shut the executor down"
            )

    def __enter__(self) -> AsyncExecutor:
        self._require_open("__enter__")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.shutdown()
        elif self._is_open:
            self._abandon()  # the first error is the one to tell, and soon

    def __del__(self) -> None:
        if not self._is_open:
            return
        with suppress(Exception):
            warnings.warn(
                "an AsyncExecutor was not shut down; use it in a with block",
                ResourceWarning,
                stacklevel=2,
            )
        with suppress(Exception):
            self._abandon()


def _require_whole(name: str, value: int, least: int, most: int, hint: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}, got {value}; {hint}")


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
