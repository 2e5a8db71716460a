"""What makes the host wait inside a step, which must not: the waits are counted, with reasons."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class HostWait:
    """An operation that made the host wait for the device, why, and how often."""

    operation: str
    reason: str
    count: int


Counts = dict[tuple[str, str], int]


class HostWaitCounter:
    """Tells what made the host wait between two moments.

    Only gapless counts these; elsewhere ``is_counting`` is false and nothing is found. The counts
    are the whole process's: what another thread waited for meanwhile is in them.
    """

    def __init__(self, device: torch.device) -> None:
        self._read = _departures() if device.type == "gapless" else None
        self._before: Counts = {}

    @property
    def is_counting(self) -> bool:
        """Whether the device says what the host waited for."""
        return self._read is not None

    def begin(self) -> None:
        """Look from now on."""
        if self._read is not None:
            self._before = self._read()

    def end(self) -> tuple[HostWait, ...]:
        """What the host waited for since ``begin``."""
        if self._read is None:
            return ()
        before, after = self._before, self._read()
        if before == after:
            return ()
        found = []
        for (operation, reason), count in after.items():
            earlier = before.get((operation, reason), 0)
            # Fewer than before: somebody has set the counts to zero meanwhile.
            count = count - earlier if count >= earlier else count
            if count:
                found.append(HostWait(operation, reason, count))
        return tuple(found)


def _departures() -> Callable[[], Counts]:
    counts = importlib.import_module("gapless.device.departures").counts
    return lambda: {(each.operation, each.reason): each.count for each in counts()}
