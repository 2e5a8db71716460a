"""What happens before what: one vector clock per stream, and one for the host.

A program's result is determined where of any two accesses to the same memory, one of which writes,
one comes before the other: by their stream, by events, or by the host having waited in between.
"""

from dataclasses import dataclass, field

Clock = tuple[int, ...]


def merged(first: Clock, second: Clock) -> Clock:
    """What is ordered after both."""
    return tuple(max(a, b) for a, b in zip(first, second, strict=True))


@dataclass(frozen=True)
class Access:
    """The work at a place in a stream's order."""

    stream: int
    place: int


class Ordering:
    """Clocks while a program is put together."""

    def __init__(self, streams: int) -> None:
        zero = (0,) * streams
        self.host: Clock = zero
        self._seen: list[Clock] = [zero] * streams

    def submit(self, stream: int) -> Access:
        """A work comes after all that its stream and the host have waited for."""
        clock = list(merged(self._seen[stream], self.host))
        clock[stream] += 1
        self._seen[stream] = tuple(clock)
        return Access(stream, clock[stream])

    def now(self, stream: int) -> Clock:
        """What an event marks that is recorded now."""
        return merged(self._seen[stream], self.host)

    def wait(self, stream: int, clock: Clock) -> None:
        """The stream waits for an event's clock."""
        self._seen[stream] = merged(self._seen[stream], clock)

    def host_waits(self, clock: Clock) -> None:
        """The host waits for an event's clock."""
        self.host = merged(self.host, clock)

    def is_before(self, access: Access, stream: int | None) -> bool:
        """Whether it is ordered before the stream's next work; ``None``: before the host's."""
        clock = self.host if stream is None else self.now(stream)
        return clock[access.stream] >= access.place


@dataclass
class Memory:
    """A piece of memory with its accesses that a later one may have to wait for."""

    last_write: Access | None = None
    reads: list[Access] = field(default_factory=list)

    def conflicts(self, writes: bool) -> list[Access]:
        """What an access has to come after."""
        return ([self.last_write] if self.last_write else []) + (self.reads if writes else [])

    def note(self, access: Access, writes: bool) -> None:
        """The access took place."""
        if writes:
            self.last_write = access
            self.reads = []
        else:
            self.reads.append(access)
