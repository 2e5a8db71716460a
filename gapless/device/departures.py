"""Departures from the asynchronous path: where the host had to wait, how often, and why."""

from dataclasses import dataclass

from gapless import _C


@dataclass(frozen=True)
class Departure:
    """One operation that made the host wait for the device."""

    operation: str
    reason: str
    count: int


def counts() -> tuple[Departure, ...]:
    """Departures since the start of the process or the last :func:`reset`."""
    return tuple(Departure(*row) for row in _C.departures())


def reset() -> None:
    """Start counting from zero."""
    _C.reset_departures()
