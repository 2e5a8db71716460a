"""What runs in each worker: load the step, then answer messages until told to stop."""

from __future__ import annotations

import gc
import os
import select
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gapless.pipeline.captured_step import CapturedStep
from gapless.pipeline.completion_file import CompletionFile
from gapless.pipeline.device_choice import choose_device
from gapless.pipeline.pipeline import Pipeline
from gapless.pipeline.step_error import StepError
from gapless.pipeline.step_marks import host_ranges, process_namer, ranges_are_recorded
from gapless.pipeline.worker_channel import Channel, Kind, Message, packed, unpacked

if TYPE_CHECKING:
    from gapless._C import StepExchange, StepPort

Load = Callable[[int], Any]
# So many steps a worker may be ahead of the slowest one before it has nothing to submit.
POSTED_AHEAD = 2


@dataclass(frozen=True)
class WorkerSettings:
    """What all workers of an executor have in common.

    Attributes:
        world_size: how many there are.
        depth: steps in flight at most, per worker.
        device: where the steps run, as ``choose_device`` takes it; ``{rank}`` stands for the rank.
        environment: variables that are set before the workers are forked.
        port: where they may meet for ``torch.distributed``; None: nowhere.
    """

    world_size: int
    depth: int
    device: str
    environment: dict[str, str]
    port: int | None

    @property
    def most_posted(self) -> int:
        """Steps that lie before a worker at most, in flight or not yet: see AsyncExecutor.map."""
        return self.depth + (POSTED_AHEAD if self.depth > 1 else 0)


@dataclass(frozen=True)
class Failure:
    """A worker's error as it travels.

    Attributes:
        text: one line.
        traceback: its traceback.
        error: the error itself, packed; empty where it cannot be.
    """

    text: str
    traceback: str
    error: bytes


def run_worker(rank: int, channel: Channel, load: Load, settings: WorkerSettings) -> int:
    """Be a worker until the caller says stop. Returns the process's exit code."""
    if settings.port is not None:
        os.environ.update(
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(settings.port),
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(settings.world_size),
            LOCAL_WORLD_SIZE=str(settings.world_size),
        )
    process_namer()(f"worker {rank}")
    worker: _PipelineWorker | _PortWorker | None = None
    try:
        step = load(rank)
        name = choose_device(settings.device.replace("{rank}", str(rank)))
        device = torch.empty(0, device=name).device  # with its index
        if isinstance(step, CapturedStep) and device.type == "gapless":
            worker = _PortWorker(rank, channel, step, device, settings)
        else:
            worker = _PipelineWorker(channel, step, device, settings.depth)
        # What is there now stays; the collector need not look at it between two steps.
        gc.collect()
        gc.freeze()
        worker.run()
    except BaseException as error:
        step_number = worker.step if worker is not None else None
        _send_error(channel, error, step_number)
        if isinstance(worker, _PortWorker):
            worker.report()
        return 1
    return 0


class _PipelineWorker:
    """Any function on any device."""

    def __init__(self, channel: Channel, step: Any, device: torch.device, depth: int) -> None:
        self._channel = channel
        self._depth = depth
        self._next_read = 0
        self.step: int | None = None
        prepare = None
        if isinstance(step, CapturedStep):
            if step.reset is not None:
                step.reset()
            step, prepare = step.as_function(), step.as_prepare()
        if not callable(step):
            raise TypeError(
                f"load returned {type(step).__name__}; it must return the step, a function of one "
                "input, or a CapturedStep"
            )
        self._pipeline = Pipeline(step, depth, device=device, prepare=prepare)
        self._completion = CompletionFile(device)

    def run(self) -> None:
        pipeline, completion = self._pipeline, self._completion
        done, either = select.poll(), select.poll()
        done.register(completion.fileno(), select.POLLIN)
        either.register(completion.fileno(), select.POLLIN)
        either.register(self._channel.fileno(), select.POLLIN)
        self._channel.send(Kind.READY, body=packed(None))
        while True:
            while pipeline.in_flight < self._depth:
                message = self._channel.receive(blocking=not pipeline.in_flight)
                if message is None:
                    break
                if not self._handle(message):
                    self._answer(pipeline.in_flight)
                    pipeline.close()
                    completion.close()
                    return
            if pipeline.in_flight:
                (done if pipeline.in_flight == self._depth else either).poll()
                self._answer(completion.take())

    def _handle(self, message: Message) -> bool:
        if message.kind == Kind.STEP:
            self.step = message.step
            self._pipeline.submit(unpacked(message.body))
            self._completion.submit()
            self.step = None
            return True
        if message.kind == Kind.CALL:
            self._channel.send(Kind.RETURNED, body=_called(message.body))
            return True
        return False

    def _answer(self, count: int) -> None:
        for _ in range(count):
            self.step = self._next_read
            self._channel.send(Kind.RESULT, self._next_read, packed(self._pipeline.result()))
            self._next_read += 1
            self.step = None


class _PortWorker:
    """A captured step: received, submitted and answered natively."""

    def __init__(
        self,
        rank: int,
        channel: Channel,
        step: CapturedStep,
        device: torch.device,
        settings: WorkerSettings,
    ) -> None:
        self._rank = rank
        self._channel = channel
        self._prepare = step.prepare
        self._device = device
        self._settings = settings
        self._slots = step.capture(device, settings.depth)
        self._exchange: StepExchange | None = None
        self._submitted = 0
        self.step: int | None = None

    def run(self) -> None:
        slots, prepare = self._slots, self._prepare
        views = [slots.input_layout.views(buffer) for buffer in slots.inputs]
        self._channel.send(Kind.READY, body=packed((slots.input_layout, slots.result_layout)))
        port = self._open_port()
        if port is None:
            return
        while True:
            try:
                if ranges_are_recorded():
                    kind = self._run_marked(port, views)
                else:
                    kind = port.run(prepare, views)
            except BaseException:
                self.step = port.received if port.received >= 0 else None
                raise
            if kind == Kind.STEP:
                continue
            torch.accelerator.synchronize(self._device)
            message = self._channel.receive()
            if message is None or message.kind != Kind.CALL:
                return
            self._channel.send(Kind.RETURNED, body=_called(message.body))

    def _run_marked(self, port: StepPort, views: list[tuple[torch.Tensor, ...]]) -> int:
        """What ``StepPort.run`` does, with marks on what the host does; returns after each step."""
        host_range = host_ranges()
        with host_range("receive", self._submitted):
            kind = port.receive()
        if kind == Kind.STEP:
            if self._prepare is not None:
                with host_range("prepare", self._submitted):
                    self._prepare(*views[self._submitted % len(views)])
            with host_range("submit", self._submitted):
                port.submit()
            self._submitted += 1
        return kind

    def report(self) -> None:
        """End the caller's wait for results: there is a message in the socket."""
        if self._exchange is not None:
            self._exchange.report()

    def _open_port(self) -> StepPort | None:
        from gapless._C import StepExchange, StepPort

        file = self._channel.receive_file()
        if file < 0:
            return None
        slots, settings = self._slots, self._settings
        try:
            self._exchange = StepExchange(
                file, settings.world_size, settings.most_posted, slots.input_layout.size,
                slots.result_layout.size,
            )  # fmt: skip
        finally:
            os.close(file)
        port = StepPort(self._exchange, self._rank, self._device.index)
        for graph, sent, returned in zip(slots.graphs, slots.inputs, slots.results, strict=True):
            port.add_slot(graph, sent, returned)
        return port


def _called(body: bytes) -> bytes:
    function, arguments = unpacked(body)
    return packed(function(*arguments))


def _send_error(channel: Channel, error: BaseException, step: int | None) -> None:
    cause = error
    if isinstance(error, StepError) and error.__cause__ is not None:
        cause = error.__cause__
    lines = str(error).splitlines()
    kind = type(error).__name__
    text = lines[0] if isinstance(error, StepError) else f"{kind}: {lines[0]}" if lines else kind
    try:
        whole = packed(cause)
        unpacked(whole)
    except Exception:
        whole = b""
    told = "".join(traceback.format_exception(cause))
    try:
        channel.send(Kind.ERROR, -1 if step is None else step, packed(Failure(text, told, whole)))
    except OSError:  # nobody is there to be told
        sys.stderr.write(told)
