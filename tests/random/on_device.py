"""Runs a program on the device, asynchronously, as a user would write it."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from tests.random import gate, operators
from tests.random import instructions as i


@cache
def _streams(devices: tuple[int, ...]) -> tuple[torch.Stream, ...]:
    streams = []
    for place, device in enumerate(devices):
        first = device not in devices[:place]
        streams.append(
            torch.gapless.default_stream(device) if first else torch.Stream(f"gapless:{device}")
        )
    return tuple(streams)


def values(tensor: Tensor) -> bytes:
    """A CPU tensor's values, to be compared bit for bit."""
    return tensor.contiguous().numpy().tobytes()


class OnDevice:
    """The program's tensors, buffers, events and graphs.

    Args:
        program: what to run.
        forget: kinds of instructions that are not executed, to see that it is noticed.
    """

    def __init__(self, program: i.Program, forget: frozenset[type] = frozenset()) -> None:
        self.program = program
        self.forget = forget
        self.devices = sorted(set(program.stream_devices))
        self.streams = _streams(program.stream_devices)
        self.tensors: dict[int, Tensor] = {}
        self.hosts: dict[int, Tensor] = {}
        self.events: dict[int, torch.Event] = {}
        self.graphs: dict[int, torch.accelerator.Graph] = {}
        self.trace: list[bytes] = []

    def run(self) -> list[bytes]:
        """What the host saw: at each read, and of everything at the end."""
        torch.gapless.manual_seed_all(self.program.seed)
        try:
            for instruction in self.program.instructions:
                self.execute(instruction)
            for device in self.devices:
                torch.accelerator.synchronize(device)
            self.trace += [values(self.tensors[name].cpu()) for name in self.program.results]
            self.trace += [values(buffer) for buffer in self.hosts.values()]
            return self.trace
        finally:
            self.leave()

    def leave(self) -> None:
        """Nothing is left running, whatever happened."""
        gate.release_all()
        for device in self.devices:
            torch.accelerator.set_stream(torch.gapless.default_stream(device))
            torch.accelerator.synchronize(device)
        gate.forget_all()
        torch.accelerator.set_device_index(0)

    def execute(self, instruction: i.Instruction) -> None:
        """One instruction."""
        if type(instruction) in self.forget:
            return
        handler: Callable[[i.Instruction], None] = getattr(self, type(instruction).__name__)
        stream = getattr(instruction, "stream", None)
        if stream is not None:
            torch.accelerator.set_stream(self.streams[stream])
        handler(instruction)

    def Fill(self, it: i.Fill) -> None:
        device = f"gapless:{self.program.stream_devices[it.stream]}"
        self.tensors[it.out] = operators.counting(it.shape, it.dtype, it.start, device)

    def Apply(self, it: i.Apply) -> None:
        operands = [self.tensors[name] for name in it.operands]
        table = operators.UNARY if len(operands) == 1 else operators.BINARY
        self.tensors[it.out] = table[it.name](*operands)

    def Update(self, it: i.Update) -> None:
        target = self.tensors[it.target]
        if it.operands:
            operators.UPDATE_WITH[it.name](target, self.tensors[it.operands[0]])
        else:
            operators.UPDATE_ALONE[it.name](target, None)

    def View(self, it: i.View) -> None:
        self.tensors[it.out] = operators.VIEWS[it.name][0](self.tensors[it.base])

    def Free(self, it: i.Free) -> None:
        del self.tensors[it.tensor]

    def HostBuffer(self, it: i.HostBuffer) -> None:
        made = operators.counting(it.shape, it.dtype, it.start)
        if it.pinned:
            pinned = torch.empty(it.shape, dtype=made.dtype, pin_memory=True)
            made = pinned.copy_(made)
        self.hosts[it.out] = made

    def HostWrite(self, it: i.HostWrite) -> None:
        self.hosts[it.buffer].add_(it.number)

    def HostRead(self, it: i.HostRead) -> None:
        self.trace.append(values(self.hosts[it.buffer]))

    def HostFree(self, it: i.HostFree) -> None:
        del self.hosts[it.buffer]

    def CopyIn(self, it: i.CopyIn) -> None:
        self.tensors[it.target].copy_(self.hosts[it.buffer], non_blocking=it.non_blocking)

    def CopyOut(self, it: i.CopyOut) -> None:
        self.hosts[it.buffer].copy_(self.tensors[it.source], non_blocking=it.non_blocking)

    def PeerCopy(self, it: i.PeerCopy) -> None:
        torch.accelerator.set_stream(self.streams[it.from_stream])
        torch.accelerator.set_stream(self.streams[it.to_stream])
        self.tensors[it.target].copy_(self.tensors[it.source], non_blocking=True)

    def Read(self, it: i.Read) -> None:
        self.trace.append(values(self.tensors[it.tensor].cpu()))

    def Record(self, it: i.Record) -> None:
        event = self.events.get(it.event)
        if event is None or event.device.index != self.program.stream_devices[it.stream]:
            event = self.events[it.event] = torch.Event("gapless", enable_timing=it.event % 2 == 0)
        event.record(self.streams[it.stream])

    def Wait(self, it: i.Wait) -> None:
        self.streams[it.stream].wait_event(self.events[it.event])

    def SyncEvent(self, it: i.SyncEvent) -> None:
        self.events[it.event].synchronize()

    def SyncStream(self, it: i.SyncStream) -> None:
        self.streams[it.stream].synchronize()

    def SyncDevice(self, it: i.SyncDevice) -> None:
        torch.accelerator.synchronize(it.device)

    def Hold(self, it: i.Hold) -> None:
        gate.hold(it.gate, self.program.stream_devices[it.stream])

    def Release(self, it: i.Release) -> None:
        gate.release(it.gate)

    def Capture(self, it: i.Capture) -> None:
        pool = None if it.pool_of is None else self.graphs[it.pool_of].pool()
        graph = torch.accelerator.Graph(pool=pool)
        graph.capture_begin()
        try:
            for instruction in it.body:
                self.execute(instruction)
        finally:
            torch.accelerator.set_stream(self.streams[it.stream])
            graph.capture_end()
        self.graphs[it.graph] = graph

    def Replay(self, it: i.Replay) -> None:
        self.graphs[it.graph].replay()

    def DropGraph(self, it: i.DropGraph) -> None:
        del self.graphs[it.graph]
