"""What makes the host wait inside a step, which must not: the waits are counted, with reasons."""

from __future__ import annotations

import importlib
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
        self._departures = (
            importlib.import_module("gapless.device.departures")
            if device.type == "gapless"
            else None
        )
        # To read all counts takes longer than to submit an operation, and they hardly ever change.
        self._seen = -1
        self._before: Counts = {}

    @property
    def is_counting(self) -> bool:
        """Whether the device says what the host waited for."""
        return self._departures is not None

    def begin(self) -> None:
        """Look from now on."""
        if self._departures is not None:
            self._look()

    def end(self) -> tuple[HostWait, ...]:
        """What the host waited for since ``begin``."""
        before = self._before
        if self._departures is None or not self._look():
            return ()
        after = self._before
        found = []
        for (operation, reason), count in after.items():
            earlier = before.get((operation, reason), 0)
            # Fewer than before: somebody has set the counts to zero meanwhile.
            count = count - earlier if count >= earlier else count
            if count:
                found.append(HostWait(operation, reason, count))
        return tuple(found)

    def _look(self) -> bool:
        """Read the counts if they have changed, and say so."""
        assert self._departures is not None
        # The change first: what happens meanwhile is read again the next time.
        changes = self._departures.changes()
        if changes == self._seen:
            return False
        self._before = {
            (each.operation, each.reason): each.count for each in self._departures.counts()
        }
        self._seen = changes
        return True
