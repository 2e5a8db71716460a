"""Receipts: proof that the device ran a step, rather than skipping it after an earlier failure.

A device reports a failure to whoever waits first, and skips what had been submitted behind it.
The next to wait gets no error, and without a receipt would take whatever is in the result's memory
for the result. So each step begins with the copy of its number to the device and ends with the
copy of that number back: it arrives only if the stream ran from the one to the other.
"""

from __future__ import annotations

import torch


class Receipts:
    """One receipt per step in flight; none on the CPU, where an error is raised where it happens.

    Args:
        device: where the steps run.
        slots: steps in flight at most. A slot may be used again once its step was waited for.
    """

    def __init__(self, device: torch.device, slots: int) -> None:
        self._on_cpu = device.type == "cpu"
        if self._on_cpu:
            return
        # Written by copies in every mode of autograd, which an inference tensor does not allow.
        with torch.inference_mode(False):
            outgoing = torch.full((slots,), -1, dtype=torch.int64).pin_memory()
            on_device = torch.full((slots,), -1, dtype=torch.int64, device=device)
            returned = torch.full((slots,), -1, dtype=torch.int64).pin_memory()
        self._outgoing = torch.split(outgoing, 1)
        self._on_device = torch.split(on_device, 1)
        self._returned = torch.split(returned, 1)
        self._outgoing_numbers = outgoing.numpy()
        self._returned_numbers = returned.numpy()

    def open(self, slot: int, number: int) -> None:
        """Submit the beginning of step ``number``, a number that no other step has."""
        if not self._on_cpu:
            self._outgoing_numbers[slot] = number
            self._on_device[slot].copy_(self._outgoing[slot], non_blocking=True)

    def close(self, slot: int) -> None:
        """Submit the end of the slot's step."""
        if not self._on_cpu:
            self._returned[slot].copy_(self._on_device[slot], non_blocking=True)

    def arrived(self, slot: int, number: int) -> bool:
        """Whether step ``number`` was run from beginning to end; ask after waiting for it."""
        return self._on_cpu or bool(self._returned_numbers[slot] == number)
