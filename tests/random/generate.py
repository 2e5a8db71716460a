"""Puts random programs together whose results are determined whatever overlaps.

The choices come from a ``random.Random``, which hypothesis can stand in for.
"""

from math import prod
from random import Random

from tests.random import operators
from tests.random.instructions import (
    Apply,
    Capture,
    CopyIn,
    CopyOut,
    DropGraph,
    Fill,
    Free,
    Hold,
    HostBuffer,
    HostFree,
    HostRead,
    HostWrite,
    PeerCopy,
    Program,
    Read,
    Record,
    Release,
    Replay,
    Update,
    View,
    Wait,
)
from tests.random.ordering import Memory
from tests.random.shapes import Shape, result_of, view_of
from tests.random.tracker import EVENTS, Graph, Host, Pool, Storage, Tensor, Tracker

SHAPES = ((1,), (64,), (64,), (257,), (16, 16), (5, 40))
LARGE_SHAPES = ((40_000,), (300_000,))
LARGEST = 500_000  # elements of an operand
MOST_TENSORS = 14
FORK, JOIN = EVENTS, EVENTS + 1  # events inside captures


class Generator(Tracker):
    """Chooses instructions. Each method returns whether there was something to do it to."""

    def fill(self, stream: int) -> bool:
        random = self.random
        shape = random.choice(SHAPES if random.randrange(20) else LARGE_SHAPES)
        dtype = random.choice(list(operators.DTYPES))
        out, storage = self.new_tensor(self.stream_devices[stream], Shape(shape, dtype))
        start = random.randrange(100)
        self.access(stream, [], [storage])
        self.emit(Fill(stream, out, shape, dtype, start))
        return True

    def apply(self, stream: int) -> bool:
        random = self.random
        names = self.some(self.stream_devices[stream])
        if not names:
            return False
        first = random.choice(names)
        shape = self.tensors[first].shape
        if prod(shape.sizes) > LARGEST:
            return False
        partners = [name for name in names if self.tensors[name].shape.sizes == shape.sizes]
        operands = (first,)
        table: dict[str, object] = dict(operators.UNARY)
        if random.randrange(2):
            operands = (first, random.choice(partners))
            table = dict(operators.BINARY)
        name = random.choice(list(table))
        result = result_of(table[name], [self.tensors[n].shape for n in operands])
        reads: list[Memory] = [self.tensors[n].storage for n in operands]
        out, storage = self.new_tensor(self.stream_devices[stream], result)
        self.access(stream, reads, [storage])
        self.emit(Apply(stream, name, out, operands))
        return True

    def update(self, stream: int) -> bool:
        random = self.random
        names = self.some(self.stream_devices[stream], writable=True)
        if not names:
            return False
        target = random.choice(names)
        tensor = self.tensors[target]
        # An operand that overlaps with the target in part is an error on any device.
        partners = [
            name
            for name in self.some(self.stream_devices[stream])
            if self.tensors[name].shape.sizes == tensor.shape.sizes
            and self.tensors[name].storage is not tensor.storage
        ]
        if partners and random.randrange(2):
            name = random.choice(list(operators.UPDATE_WITH))
            operand = random.choice(partners)
            self.access(stream, [self.tensors[operand].storage], [tensor.storage])
            self.emit(Update(stream, name, target, (operand,)))
        else:
            name = random.choice(list(operators.UPDATE_ALONE))
            self.access(stream, [], [tensor.storage])
            self.emit(Update(stream, name, target, ()))
        return True

    def view(self, stream: int) -> bool:
        names = self.some(self.stream_devices[stream])
        if not names:
            return False
        base = self.random.choice(names)
        name = self.random.choice(list(operators.VIEWS))
        tensor = self.tensors[base]
        shape, writable = view_of(name, tensor.shape)
        out = self.number()
        self.tensors[out] = Tensor(tensor.storage, shape, tensor.writable and writable)
        if self.capturing and base in self.made_inside:
            self.made_inside.append(out)
        self.emit(View(name, out, base))
        return True

    def free(self, stream: int) -> bool:
        names = list(self.made_inside if self.capturing else self.tensors)
        if not names:
            return False
        self.forget(self.random.choice(names))
        return True

    def forget(self, name: int) -> None:
        storage = self.tensors.pop(name).storage
        if name in self.made_inside:
            self.made_inside.remove(name)
        self.emit(Free(name))
        if storage.pool and all(t.storage is not storage for t in self.tensors.values()):
            # Its memory may serve the next graph of the pool, whose replays come after these.
            storage.pool.reads += storage.conflicts(writes=True)
            storage.freed = True
            storage.defined = False

    def host_buffer(self, stream: int) -> bool:
        out = self.number()
        host = Host(
            shape=self.random.choice(SHAPES),
            dtype=self.random.choice(list(operators.DTYPES)),
            pinned=bool(self.random.randrange(4)),
        )
        self.hosts[out] = host
        start = self.random.randrange(100)
        self.emit(HostBuffer(out, host.shape, host.dtype, start, host.pinned))
        return True

    def host_access(self, stream: int) -> bool:
        if not self.hosts:
            return False
        name = self.random.choice(list(self.hosts))
        writes = bool(self.random.randrange(3))
        self.before(self.hosts[name].conflicts(writes), None)
        self.emit(HostWrite(name, self.random.randrange(1, 9)) if writes else HostRead(name))
        return True

    def host_free(self, stream: int) -> bool:
        if not self.hosts:
            return False
        name = self.random.choice(list(self.hosts))
        del self.hosts[name]
        self.emit(HostFree(name))
        return True

    def copy_in(self, stream: int) -> bool:
        return self.copy_host(stream, to_device=True)

    def copy_out(self, stream: int) -> bool:
        return self.copy_host(stream, to_device=False)

    def copy_host(self, stream: int, to_device: bool) -> bool:
        pairs = [
            (name, buffer)
            for name in self.some(self.stream_devices[stream], writable=to_device)
            for buffer, host in self.hosts.items()
            if host.shape == self.tensors[name].shape.sizes
            and (host.pinned or (not self.capturing))
        ]
        if not pairs:
            return False
        name, buffer = self.random.choice(pairs)
        host, storage = self.hosts[buffer], self.tensors[name].storage
        non_blocking = bool(self.capturing) or bool(self.random.randrange(3))
        later = host.pinned and non_blocking
        if not later:  # the host itself reads or writes the buffer, now
            self.before(host.conflicts(writes=not to_device), None)
        memory: list[Memory] = [host] if later else []
        if to_device:
            self.access(stream, memory, [storage])
            self.emit(CopyIn(stream, name, buffer, non_blocking))
        else:
            self.access(stream, [storage], memory)
            if not later:
                self.open_gates()
            self.emit(CopyOut(stream, buffer, name, non_blocking))
        if not later and not to_device:
            self.order.host_waits(self.order.now(stream))
        return True

    def peer_copy(self, stream: int) -> bool:
        device = self.stream_devices[stream]
        pairs = [
            (target, source)
            for target in self.some(device, writable=True)
            for source, tensor in self.tensors.items()
            if tensor.storage.device != device
            and tensor.storage.defined
            and tensor.shape.sizes == self.tensors[target].shape.sizes
        ]
        if not pairs:
            return False
        target, source = self.random.choice(pairs)
        from_device = self.tensors[source].storage.device
        other = self.stream(from_device)
        # The copy runs on the target's stream, and each stream waits for the other one.
        self.before(self.tensors[source].storage.conflicts(writes=False), other)
        self.order.wait(stream, self.order.now(other))
        self.access(stream, [self.tensors[source].storage], [self.tensors[target].storage])
        # Ordering the copy may have put works between.
        self.emit(PeerCopy(stream, other, target, source))
        self.order.wait(other, self.order.now(stream))
        return True

    def read(self, stream: int) -> bool:
        names = self.some(self.stream_devices[stream])
        if not names:
            return False
        name = self.random.choice(names)
        self.access(stream, [self.tensors[name].storage], [])
        self.open_gates()
        self.emit(Read(stream, name))
        self.order.host_waits(self.order.now(stream))
        return True

    def events_at_random(self, stream: int) -> bool:
        """Order that nothing asked for: marks and waits in odd places."""
        event = self.random.randrange(EVENTS)
        if event not in self.events or self.random.randrange(2):
            self.record(event, stream)
        elif self.random.randrange(4):
            self.wait(event, stream)
        else:
            self.sync_event(event)
        return True

    def hold(self, stream: int) -> bool:
        if len(self.gates) >= 2 or stream in self.gates.values():
            return False
        gate = self.number()
        self.gates[gate] = stream
        self.order.submit(stream)
        self.emit(Hold(gate, stream))
        return True

    def release(self, stream: int) -> bool:
        if not self.gates:
            return False
        gate = self.random.choice(list(self.gates))
        del self.gates[gate]
        self.emit(Release(gate))
        return True

    def capture(self, stream: int) -> bool:
        random = self.random
        device = self.stream_devices[stream]
        if len(self.graphs) >= 4:
            return False
        mates = [name for name, graph in self.graphs.items() if graph.device == device]
        pool_of = random.choice(mates) if mates and random.randrange(3) == 0 else None
        pool = self.graphs[pool_of].pool if pool_of is not None else Pool()
        graph = Graph(device, pool, order=len(pool.graphs))
        outside, self.instructions = self.instructions, []
        self.capturing, self.made_inside = graph, []
        # Replay follows the order of submission, so that the streams inside need no order of their
        # own here; the graph must be joined at its end.
        streams = [stream]
        others = [s for s, on in enumerate(self.stream_devices) if on == device and s != stream]
        if others and random.randrange(3) == 0:
            streams.append(random.choice(others))
            self.instructions += [Record(FORK, stream), Wait(FORK, streams[1])]
        twice = [self.apply, self.update] * 2
        captured = [*twice, self.fill, self.view, self.free, self.copy_in, self.copy_out]
        for _ in range(random.randint(0, 10)):
            random.choice(captured)(random.choice(streams))
        if len(streams) > 1:
            self.instructions += [Record(JOIN, streams[1]), Wait(JOIN, stream)]
        body, self.instructions = tuple(self.instructions), outside
        self.capturing, self.made_inside = None, []
        name = self.number()
        for storage in graph.inside:
            storage.pool = pool
        pool.graphs.append(graph)
        self.graphs[name] = graph
        self.emit(Capture(name, stream, pool_of, body))
        if random.randrange(4):
            self.replay_one(name)
        return True

    def replay(self, stream: int) -> bool:
        if not self.graphs:
            return False
        self.replay_one(self.random.choice(list(self.graphs)))
        return True

    def replay_one(self, name: int) -> None:
        graph = self.graphs[name]
        own = {id(storage) for storage in graph.inside}
        for memory in [*graph.reads, *graph.writes]:
            if isinstance(memory, Storage) and id(memory) not in own and not memory.defined:
                return  # would compute with what is undefined
        stream = self.stream(graph.device)
        self.access(stream, graph.reads, [*graph.writes, *graph.inside, graph.pool])
        self.emit(Replay(name, stream))
        for storage in graph.inside:
            storage.defined = not storage.freed
        # What was captured later may live where this one keeps what it forgot inside.
        for other in graph.pool.graphs:
            if other.order > graph.order:
                for storage in other.inside:
                    storage.defined = False

    def drop_graph(self, stream: int) -> bool:
        if not self.graphs:
            return False
        name = self.random.choice(list(self.graphs))
        self.open_gates()  # it waits for its replays
        self.emit(DropGraph(name))
        del self.graphs[name]
        return True


def generate(random: Random, devices: int, length: int = 40, seed: int = 0) -> Program:
    """A program of about ``length`` instructions, for up to ``devices`` devices, two at most."""
    devices = random.randint(1, min(devices, 2))
    state = Generator(random, devices)
    common = [
        *[state.fill] * 2,
        *[state.apply] * 8,
        *[state.update] * 8,
        *[state.view] * 3,
        *[state.free] * 4,
        *[state.host_buffer] * 2,
        *[state.host_access] * 3,
        state.host_free,
        *[state.copy_in] * 3,
        *[state.copy_out] * 3,
        *([state.peer_copy] * 3 if devices > 1 else []),
        state.read,
        *[state.events_at_random] * 2,
        *[state.hold] * 4,
        state.release,
        *[state.capture] * 2,
        *[state.replay] * 4,
        state.drop_graph,
    ]
    for stream in range(len(state.stream_devices)):
        state.fill(stream)
    while len(state.instructions) < length:
        random.choice(common)(state.stream())
        while len(state.tensors) > MOST_TENSORS:
            state.forget(random.choice(list(state.tensors)))
    state.open_gates()
    defined = tuple(name for name, tensor in state.tensors.items() if tensor.storage.defined)
    return Program(seed, state.stream_devices, tuple(state.instructions), defined)
