"""The instructions that programs are made of. Tensors, host buffers and so on have numbers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fill:
    """A new device tensor of a stream's device, counting up from ``start``."""

    stream: int
    out: int
    shape: tuple[int, ...]
    dtype: str
    start: int


@dataclass(frozen=True)
class Apply:
    """A new device tensor, of an operator's result."""

    stream: int
    name: str
    out: int
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Update:
    """An operator that writes to ``target`` in place."""

    stream: int
    name: str
    target: int
    operands: tuple[int, ...]


@dataclass(frozen=True)
class View:
    """Another tensor over the same memory."""

    name: str
    out: int
    base: int


@dataclass(frozen=True)
class Free:
    """Forget a device tensor, whatever is queued that uses its memory."""

    tensor: int


@dataclass(frozen=True)
class HostBuffer:
    """A new CPU tensor, counting up from ``start``; pinned or not."""

    out: int
    shape: tuple[int, ...]
    dtype: str
    start: int
    pinned: bool


@dataclass(frozen=True)
class HostWrite:
    """The host adds to its buffer."""

    buffer: int
    number: int


@dataclass(frozen=True)
class HostRead:
    """The host looks at its buffer."""

    buffer: int


@dataclass(frozen=True)
class HostFree:
    """Forget a CPU tensor, whatever is queued that uses its memory."""

    buffer: int


@dataclass(frozen=True)
class CopyIn:
    """From a host buffer to a device tensor."""

    stream: int
    target: int
    buffer: int
    non_blocking: bool


@dataclass(frozen=True)
class CopyOut:
    """From a device tensor to a host buffer."""

    stream: int
    buffer: int
    source: int
    non_blocking: bool


@dataclass(frozen=True)
class PeerCopy:
    """Between tensors of two devices, each with a current stream."""

    to_stream: int
    from_stream: int
    target: int
    source: int


@dataclass(frozen=True)
class Read:
    """The host reads a device tensor, and waits for it."""

    stream: int
    tensor: int


@dataclass(frozen=True)
class Record:
    """Record an event on a stream, for the first time or again."""

    event: int
    stream: int


@dataclass(frozen=True)
class Wait:
    """A stream waits for an event."""

    event: int
    stream: int


@dataclass(frozen=True)
class SyncEvent:
    """The host waits for an event."""

    event: int


@dataclass(frozen=True)
class SyncStream:
    """The host waits for a stream."""

    stream: int


@dataclass(frozen=True)
class SyncDevice:
    """The host waits for a device."""

    device: int


@dataclass(frozen=True)
class Hold:
    """Stop a stream until the gate is opened, so that all others run ahead of it."""

    gate: int
    stream: int


@dataclass(frozen=True)
class Release:
    """Open a gate."""

    gate: int


@dataclass(frozen=True)
class Capture:
    """Capture a graph on a stream, in the memory pool of another graph or its own."""

    graph: int
    stream: int
    pool_of: int | None
    body: "tuple[Instruction, ...]"


@dataclass(frozen=True)
class Replay:
    """Replay a graph, on whichever stream."""

    graph: int
    stream: int


@dataclass(frozen=True)
class DropGraph:
    """Destroy a graph, though replays may be queued."""

    graph: int


Instruction = (
    Fill
    | Apply
    | Update
    | View
    | Free
    | HostBuffer
    | HostWrite
    | HostRead
    | HostFree
    | CopyIn
    | CopyOut
    | PeerCopy
    | Read
    | Record
    | Wait
    | SyncEvent
    | SyncStream
    | SyncDevice
    | Hold
    | Release
    | Capture
    | Replay
    | DropGraph
)


@dataclass(frozen=True)
class Program:
    """Instructions, the device of each stream (a device's first one is its default stream), and the
    tensors that have values at the end.
    """

    seed: int
    stream_devices: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]

    def listing(self) -> str:
        """One line per instruction."""
        lines = [f"streams on devices {self.stream_devices}"]
        for place, instruction in enumerate(self.instructions):
            lines.append(f"{place:4d} {instruction}")
            if isinstance(instruction, Capture):
                lines[-1] = lines[-1].split(" body=")[0] + ":"
                lines += [f"       {inner}" for inner in instruction.body]
        return "\n".join(lines)
