"""What a program's instructions need of each other while it is put together."""

from dataclasses import dataclass, field
from random import Random

from tests.random.instructions import (
    Instruction,
    Record,
    Release,
    SyncDevice,
    SyncEvent,
    SyncStream,
    Wait,
)
from tests.random.ordering import Access, Clock, Memory, Ordering
from tests.random.shapes import Shape

EVENTS = 6


@dataclass
class Storage(Memory):
    """A device tensor's memory."""

    device: int = 0
    defined: bool = True  # not what a graph writes to, before its first replay
    freed: bool = False
    pool: "Pool | None" = None


@dataclass
class Tensor:
    """A device tensor: a storage and how it is looked at."""

    storage: Storage
    shape: Shape
    writable: bool = True


@dataclass
class Host(Memory):
    """A host buffer."""

    shape: tuple[int, ...] = ()
    dtype: str = "int64"
    pinned: bool = False


@dataclass
class Graph:
    """A captured graph: what one replay reads and writes."""

    device: int
    pool: "Pool"
    order: int
    reads: list[Memory] = field(default_factory=list)
    writes: list[Memory] = field(default_factory=list)
    inside: list[Storage] = field(default_factory=list)


@dataclass
class Pool(Memory):
    """The memory that graphs share; a replay writes to it."""

    graphs: list[Graph] = field(default_factory=list)


class Tracker:
    """The state that the next instruction is chosen by, and how it is put in order."""

    def __init__(self, random: Random, devices: int) -> None:
        self.random = random
        streams = random.randint(devices, 4)
        self.stream_devices = tuple(i % devices for i in range(streams))
        self.instructions: list[Instruction] = []
        self.order = Ordering(streams)
        self.tensors: dict[int, Tensor] = {}
        self.hosts: dict[int, Host] = {}
        self.events: dict[int, Clock] = {}
        self.graphs: dict[int, Graph] = {}
        self.gates: dict[int, int] = {}
        self.numbers = 0
        self.capturing: Graph | None = None
        self.made_inside: list[int] = []

    # What instructions need.

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def emit(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)

    def stream(self, device: int | None = None) -> int:
        return self.random.choice(
            [s for s, on in enumerate(self.stream_devices) if device is None or on == device]
        )

    def some(self, device: int, writable: bool = False) -> list[int]:
        """Tensors of the device that may be used."""
        return [
            name
            for name, tensor in self.tensors.items()
            if tensor.storage.device == device
            and (tensor.storage.defined or (self.capturing and name in self.made_inside))
            and (tensor.writable or not writable)
        ]

    def before(self, conflicts: list[Access], stream: int | None) -> None:
        """Makes the stream's next work, or the host, come after the accesses, in a random way."""
        for access in conflicts:
            if self.order.is_before(access, stream):
                continue
            ways = ["event"] * 6 + ["host event", "stream", "device"]
            way = self.random.choice(ways[6:] if stream is None else ways)
            if way in ("event", "host event"):
                event = self.random.randrange(EVENTS)
                self.record(event, access.stream)
                if way == "event" and stream is not None:
                    self.wait(event, stream)
                else:
                    self.sync_event(event)
            elif way == "stream":
                self.sync_stream(access.stream)
            else:
                self.sync_device(self.stream_devices[access.stream])

    def access(self, stream: int, reads: list[Memory], writes: list[Memory]) -> None:
        """Orders a work's accesses and notes them; in a capture, the graph's replays' accesses."""
        if self.capturing:
            self.capturing.reads += reads
            self.capturing.writes += writes
            return
        for memory in reads:
            self.before(memory.conflicts(writes=False), stream)
        for memory in writes:
            self.before(memory.conflicts(writes=True), stream)
        place = self.order.submit(stream)
        for memory in reads:
            memory.note(place, writes=False)
        for memory in writes:
            memory.note(place, writes=True)

    def new_tensor(self, device: int, shape: Shape) -> tuple[int, Storage]:
        storage = Storage(device=device)
        name = self.number()
        self.tensors[name] = Tensor(storage, shape)
        if self.capturing:
            storage.defined = False
            self.capturing.inside.append(storage)
            self.made_inside.append(name)
        return name, storage

    # Ordering.

    def open_gates(self) -> None:
        """The host is about to wait, for which nothing may be held."""
        for gate in list(self.gates):
            del self.gates[gate]
            self.emit(Release(gate))

    def record(self, event: int, stream: int) -> None:
        self.emit(Record(event, stream))
        self.events[event] = self.order.now(stream)

    def wait(self, event: int, stream: int) -> None:
        self.emit(Wait(event, stream))
        self.order.wait(stream, self.events[event])

    def sync_event(self, event: int) -> None:
        self.open_gates()
        self.emit(SyncEvent(event))
        self.order.host_waits(self.events[event])

    def sync_stream(self, stream: int) -> None:
        self.open_gates()
        self.emit(SyncStream(stream))
        self.order.host_waits(self.order.now(stream))

    def sync_device(self, device: int) -> None:
        self.open_gates()
        self.emit(SyncDevice(device))
        for stream, on in enumerate(self.stream_devices):
            if on == device:
                self.order.host_waits(self.order.now(stream))
