"""The same step in many processes, each keeping a device of its own busy.

    with AsyncExecutor(4, load) as executor:  # load(rank) returns the step
        for results in executor.map(batches):  # results[rank]
            ...

Each worker runs ahead of what the caller has read, as ``Pipeline`` does in one process.
docs/executor.md says what a step costs, and what happens when a worker dies.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from gapless.pipeline.rendezvous import free_port
from gapless.pipeline.warm_parent import WarmParent
from gapless.pipeline.worker_channel import MOST_ON_THEIR_WAY, Kind, packed, unpacked
from gapless.pipeline.worker_group import WorkerGroup
from gapless.pipeline.worker_process import WorkerSettings

if TYPE_CHECKING:
    from gapless._C import StepCaller

MOST_WORKERS = 1024
_TICK_MS = 50  # after which to ask whether a worker has died
# What StepExchange.wait returns, and what is where in a row: see csrc/torch/step_exchange.h.
_DONE, _TROUBLE = 0, 1
_KIND, _STEP, _SENT_NS = slice(0, 4), slice(8, 16), slice(16, 24)


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

    _group: WorkerGroup

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
        self._dispatched = self._collected = 0
        self._is_dispatching = self._is_mapping = False
        self._partial: list[Any] = []  # results of the step that is being collected
        self._sent_ns: list[int] = [0] * world_size
        self._rows: torch.Tensor | None = None  # of the captured step that was collected last
        self._group = WorkerGroup(self._settings, load_body, start_timeout_s, parent)

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
        """Steps that were dispatched, by ``map`` beforehand too, and not collected."""
        return self._dispatched - self._collected

    @property
    def device(self) -> str:
        """Where the steps run, as it was given."""
        return self._settings.device

    @property
    def sent_ns(self) -> list[int]:
        """By rank, when the results that were collected last were sent, in ``CLOCK_MONOTONIC``."""
        if self._rows is not None:
            return self._rows[:, _SENT_NS].view(torch.int64).squeeze(1).tolist()
        return list(self._sent_ns)

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' process ids, by rank."""
        return tuple(self._group.pids)

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
        return self._send(list(inputs))

    def broadcast(self, item: Any) -> int:
        """Submit one step with the same input to all workers; see ``dispatch``."""
        self._require_room("broadcast")
        return self._send([item])

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
        return self._collect()

    def _collect(self) -> list[Any]:
        caller = self._group.caller
        results = self._collect_any() if caller is None else self._collect_captured(caller)
        self._collected += 1
        return results

    def map(self, inputs: Iterable[Any], *, ahead: int | None = None) -> Iterator[list[Any]]:
        """Broadcast each input; yields the results in order.

        Inputs are handed to the workers before their turn, so that a worker whose device has ended
        a step submits the next one without waiting for the slowest worker. In flight on a device
        are ``depth`` steps all the same.

        Args:
            inputs: taken ``depth + ahead - 1`` steps before the result that is asked for.
            ahead: how many inputs lie before a worker beyond its depth, from 0 to 2. By default 2,
                and 0 at depth 1, which is sequential. With 0 an input may depend on the results
                of the step ``depth`` steps before it.

        Raises:
            RuntimeError: steps are in flight; or the executor is shut down.
            ValueError: ``ahead`` is out of range.
        """
        self._require_open("map")
        most = self._settings.most_posted - self.depth
        ahead = most if ahead is None else ahead
        _require_whole("ahead", ahead, 0, most, "0 where an input depends on results")
        if self.in_flight:
            raise RuntimeError(f"{self.in_flight} step(s) were not collected; do so before map()")
        return self._mapped(iter(inputs), self.depth + ahead)

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
            for channel in self._group.channels:
                channel.send(Kind.CALL, body=body)
        except OSError:
            self._group.fail()
        self._group.ring()
        answers = []
        for channel in self._group.channels:
            message = channel.receive()
            if message is None or message.kind != Kind.RETURNED:
                self._group.fail(message)
            answers.append(unpacked(message.body))
        return answers

    def shutdown(self, timeout_s: float = 30) -> None:
        """Let the workers finish what is in flight, drop the results, and end them.

        Args:
            timeout_s: after which workers that do not end are killed.

        Warns:
            PipelineWarning: a worker failed meanwhile, or had to be killed.
        """
        if self._group.is_open:
            self._group.stop(timeout_s)

    def _send(self, items: list[Any]) -> int:
        """Send one item to all workers, or one to each."""
        step = self._dispatched
        caller, layouts = self._group.caller, self._group.layouts
        if caller is not None and layouts is not None:
            # What is not plainly as it was captured is looked at again, for what it lacks.
            if not caller.post(items):
                caller.post_packed([layouts[0].pack(each) for each in items])
            self._dispatched += 1
            return step
        bodies = [packed(each) for each in items]
        if len(bodies) == 1:
            bodies = bodies * self.world_size
        self._is_dispatching = True
        try:
            for channel, body in zip(self._group.channels, bodies, strict=True):
                channel.send(Kind.STEP, step, body)
        except OSError:
            self._group.fail()
        self._dispatched += 1
        self._is_dispatching = False
        return step

    def _collect_any(self) -> list[Any]:
        results = self._partial
        while len(results) < self.world_size:
            message = self._group.channels[len(results)].receive()
            if message is None or message.kind != Kind.RESULT:
                self._group.fail(message)
            self._sent_ns[len(results)] = message.sent_ns
            results.append(unpacked(message.body))
        self._partial = []
        return results

    def _collect_captured(self, caller: StepCaller) -> list[Any]:
        step = self._collected
        while (waited := caller.wait(step, _TICK_MS)) != _DONE:
            if waited == _TROUBLE:
                self._group.fail(skipped_rank=self._skipped_rank(caller))
            if self._group.has_news():
                self._group.fail()
        self._rows = caller.rows(step)
        return caller.results(self._rows)

    def _skipped_rank(self, caller: StepCaller) -> int | None:
        """A rank whose device did not run a step to its end; None where all that ran did."""
        for step in range(self._collected, self._dispatched):
            rows = caller.rows(step)
            kinds = rows[:, _KIND].view(torch.int32).squeeze(1)
            steps = rows[:, _STEP].view(torch.int64).squeeze(1)
            found = ((kinds == int(Kind.SKIPPED)) & (steps == step)).nonzero().flatten().tolist()
            if found:
                return int(found[0])
        return None

    def _mapped(self, inputs: Iterator[Any], most_posted: int) -> Iterator[list[Any]]:
        self._require_open("map")
        has_ended = False
        self._is_mapping = True
        try:
            while True:
                while not has_ended and self.in_flight < most_posted:
                    try:
                        item = next(inputs)
                    except StopIteration:
                        has_ended = True
                        break
                    self._require_usable("map")
                    self._send([item])
                if not self.in_flight:
                    return
                self._require_usable("map")
                yield self._collect()
        finally:
            self._is_mapping = False
            while self._group.is_open and self.in_flight:  # after a break
                self._collect()

    def _require_room(self, call: str) -> None:
        self._require_open(call)
        if self.in_flight >= self.depth:
            raise RuntimeError(
                f"{self.in_flight} step(s) are in flight and the depth is {self.depth}; collect() "
                "one before dispatching more, or make the executor deeper"
            )

    def _require_open(self, call: str) -> None:
        self._require_usable(call)
        if self._is_mapping:
            raise RuntimeError(
                f"{call}() was called while a map() is under way; let it come to its end, or "
                "close() the iterator that it returned"
            )

    def _require_usable(self, call: str) -> None:
        if self._group.error is not None:
            raise RuntimeError(
                f"{call}() was called after this: {self._group.error}; make a new executor"
            )
        if not self._group.is_open:
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
        elif self._group.is_open:
            self._group.abandon()  # the first error is the one to tell, and soon

    def __del__(self) -> None:
        # Where the constructor has raised there is no group.
        group = getattr(self, "_group", None)
        if group is None or not group.is_open:
            return
        with suppress(Exception):
            warnings.warn(
                "an AsyncExecutor was not shut down; use it in a with block",
                ResourceWarning,
                stacklevel=2,
            )
        with suppress(Exception):
            group.abandon()


def _require_whole(name: str, value: int, least: int, most: int, hint: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}, got {value}; {hint}")
