"""Sampled tokens on their way to the host: a ring of pinned buffers, one event each.

A copy into pinned memory is only ordered with the device's work, so a buffer may be rewritten
only after the host has read it. The ring has one more slot than the host runs ahead, and refuses
to hand out a slot that still holds an unread token: a token is never lost silently.
"""

from __future__ import annotations

import torch


class TokenRing:
    """Device-to-host copies of a token buffer, in order.

    Args:
        source: int64 ``[rows]``, the device buffer that each step writes.
        slots: how many copies can be under way; the loop's depth plus one.

    Attributes:
        buffers: int64 ``[rows]`` on the host, one per slot, pinned where there is a device.
        rows: how many tokens a copy has.
    """

    def __init__(self, source: torch.Tensor, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"a ring needs at least one slot, got {slots}")
        on_cpu = source.device.type == "cpu"
        self.rows = source.numel()
        self.buffers = tuple(
            torch.empty(source.shape, dtype=source.dtype, pin_memory=not on_cpu)
            for _ in range(slots)
        )
        self._source = source
        # The CPU executes before it returns, so its copies are done when the call is.
        self._events = [] if on_cpu else [torch.Event(source.device) for _ in range(slots)]
        self._slots = slots
        self._pushed = 0
        self._read = 0

    @property
    def slots(self) -> int:
        """How many copies can be under way."""
        return self._slots

    @property
    def pending(self) -> int:
        """Copies submitted and not yet read."""
        return self._pushed - self._read

    def require_slot(self) -> int:
        """The slot that the next copy goes into.

        Raises:
            RuntimeError: every slot holds tokens that have not been read.
        """
        if self._pushed - self._read == self._slots:
            raise RuntimeError(
                f"all {self._slots} token buffers hold unread tokens; read before submitting more"
            )
        return self._pushed % self._slots

    def push(self) -> None:
        """Submit the copy of the current tokens into the next slot; the host does not wait.

        Raises:
            RuntimeError: every slot holds tokens that have not been read.
        """
        self.buffers[self.require_slot()].copy_(self._source, non_blocking=True)
        self.mark()

    def mark(self) -> None:
        """Record the event of a copy that was submitted into the slot of ``require_slot``."""
        if self._events:
            self._events[self._pushed % self._slots].record()
        self._pushed += 1

    @property
    def events(self) -> list[torch.Event]:
        """One per slot, to be recorded after the copy into it; none on the CPU."""
        return self._events

    def claim(self) -> int:
        """The slot of the next copy, for who submits the copy and records its event together.

        Raises:
            RuntimeError: every slot holds tokens that have not been read.
        """
        pushed = self._pushed
        if pushed - self._read == self._slots:
            self.require_slot()  # raises
        self._pushed = pushed + 1
        return pushed % self._slots

    def pop(self) -> list[int]:
        """Wait for the oldest copy and return its tokens, one per row.

        Raises:
            RuntimeError: nothing was pushed; or the work failed on the device.
        """
        if self._read == self._pushed:
            raise RuntimeError("no tokens are on their way; submit a step first")
        slot = self._read % self._slots
        if self._events:
            self._events[slot].synchronize()
        tokens: list[int] = self.buffers[slot].tolist()
        self._read += 1
        return tokens

    def clear(self) -> None:
        """Forget what is pending; call only when the device has finished it."""
        self._read = self._pushed
