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


def changes() -> int:
    """A number that changes with every departure and every :func:`reset`; cheap to ask for."""
    return _C.departure_changes()


def reset() -> None:
    """Start counting from zero."""
    _C.reset_departures()


def staged_operators() -> dict[str, int]:
    """Operators whose operands went through host copies, and how often.

    Where only a driver's copies reach the device's memory, PyTorch's CPU kernels compute on such
    copies: right, asynchronous, and slow. These are the ones that want a program of the driver's.
    """
    return dict(_C.staged_operators())
