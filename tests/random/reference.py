"""Runs a program on CPU tensors, one instruction after the other: what it ought to compute."""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.random import instructions as i
from tests.random import operators
from tests.random.on_device import values

MASK = (1 << 64) - 1


def _seed_at(seed: int, offset: int) -> int:
    """The documented seed of the n-th random operator: SplitMix64's finaliser."""
    z = (seed + (offset + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class _Numbers:
    """A device's random numbers."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.offset = 0

    def next(self) -> torch.Generator:
        generator = torch.Generator()
        generator.manual_seed(_seed_at(self.seed, self.offset))
        self.offset += 1
        return generator


class Reference:
    """A graph is the list of what its instructions do to the tensors that they captured."""

    def __init__(self, program: i.Program) -> None:
        self.program = program
        self.tensors: dict[int, Tensor] = {}
        self.hosts: dict[int, Tensor] = {}
        self.graphs: dict[int, list[Callable[[], object]]] = {}
        self.numbers = {d: _Numbers(program.seed) for d in set(program.stream_devices)}
        self.captured: list[Callable[[], object]] | None = None
        self.trace: list[bytes] = []

    def run(self) -> list[bytes]:
        """What the host should see, as :meth:`tests.random.on_device.OnDevice.run`."""
        for instruction in self.program.instructions:
            self.execute(instruction)
        self.trace += [values(self.tensors[name]) for name in self.program.results]
        self.trace += [values(buffer) for buffer in self.hosts.values()]
        return self.trace

    def execute(self, instruction: i.Instruction) -> None:
        """One instruction; those that only order streams are none here."""
        handler = getattr(self, type(instruction).__name__, None)
        if handler:
            handler(instruction)

    def perform(self, action: Callable[[], object]) -> None:
        """Now, or at each replay."""
        if self.captured is None:
            action()
        else:
            self.captured.append(action)

    def make(self, out: int, compute: Callable[[], Tensor]) -> None:
        """A new tensor; in a capture its memory is made now and written at each replay."""
        made = compute()
        self.tensors[out] = made
        if self.captured is not None:
            self.captured.append(lambda: made.copy_(compute()))

    def Fill(self, it: i.Fill) -> None:
        self.make(it.out, lambda: operators.counting(it.shape, it.dtype, it.start))

    def Apply(self, it: i.Apply) -> None:
        operands = [self.tensors[name] for name in it.operands]
        table = operators.UNARY if len(operands) == 1 else operators.BINARY
        self.make(it.out, lambda: table[it.name](*operands))

    def Update(self, it: i.Update) -> None:
        target = self.tensors[it.target]
        if it.operands:
            operand = self.tensors[it.operands[0]]
            self.perform(lambda: operators.UPDATE_WITH[it.name](target, operand))
        elif it.name == "random_":
            numbers = self.numbers[self.program.stream_devices[it.stream]]
            self.perform(lambda: operators.UPDATE_ALONE[it.name](target, numbers.next()))
        else:
            self.perform(lambda: operators.UPDATE_ALONE[it.name](target, None))

    def View(self, it: i.View) -> None:
        self.tensors[it.out] = operators.VIEWS[it.name][0](self.tensors[it.base])

    def Free(self, it: i.Free) -> None:
        del self.tensors[it.tensor]

    def HostBuffer(self, it: i.HostBuffer) -> None:
        self.hosts[it.out] = operators.counting(it.shape, it.dtype, it.start)

    def HostWrite(self, it: i.HostWrite) -> None:
        self.hosts[it.buffer].add_(it.number)

    def HostRead(self, it: i.HostRead) -> None:
        self.trace.append(values(self.hosts[it.buffer]))

    def HostFree(self, it: i.HostFree) -> None:
        del self.hosts[it.buffer]

    def CopyIn(self, it: i.CopyIn) -> None:
        target, buffer = self.tensors[it.target], self.hosts[it.buffer]
        self.perform(lambda: target.copy_(buffer))

    def CopyOut(self, it: i.CopyOut) -> None:
        buffer, source = self.hosts[it.buffer], self.tensors[it.source]
        self.perform(lambda: buffer.copy_(source))

    def PeerCopy(self, it: i.PeerCopy) -> None:
        self.tensors[it.target].copy_(self.tensors[it.source])

    def Read(self, it: i.Read) -> None:
        self.trace.append(values(self.tensors[it.tensor]))

    def Capture(self, it: i.Capture) -> None:
        self.captured = []
        for instruction in it.body:
            self.execute(instruction)
        self.graphs[it.graph], self.captured = self.captured, None

    def Replay(self, it: i.Replay) -> None:
        for action in self.graphs[it.graph]:
            action()

    def DropGraph(self, it: i.DropGraph) -> None:
        del self.graphs[it.graph]
