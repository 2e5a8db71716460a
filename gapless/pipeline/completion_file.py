"""A file that becomes readable when the device is done with a step.

So a process can wait for the device and for messages in one place, and is woken once by whichever
comes first.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import torch


class CompletionFile:
    """Signals steps of one stream, in their order.

    On gapless the device's own thread signals. On the CPU a step is done when it was submitted. For
    other accelerators a thread waits for an event per step.

    Args:
        device: with its index; its current stream is the one that is signalled.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._native: Any = None
        self._events: SimpleQueue[torch.Event | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._own = -1
        if device.type == "gapless":
            from gapless._C import CompletionSignal

            self._native = CompletionSignal()
            return
        self._own = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        if device.type != "cpu":
            self._thread = threading.Thread(target=self._wait, name="completions", daemon=True)
            self._thread.start()

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._own if self._native is None else int(self._native.fileno())

    def submit(self) -> None:
        """Signal when all is done that was submitted to the stream by now, failed or not."""
        if self._native is not None:
            self._native.submit(self._device.index)
        elif self._thread is None:
            os.eventfd_write(self._own, 1)
        else:
            event = torch.Event(self._device)
            event.record(torch.accelerator.current_stream(self._device))
            self._events.put(event)

    def take(self) -> int:
        """How many signals were reached since the last call; does not wait."""
        try:
            return os.eventfd_read(self.fileno())
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Give up what is still on its way."""
        if self._thread is not None:
            self._events.put(None)
            self._thread.join()
        if self._own >= 0:
            os.close(self._own)
            self._own = -1

    def _wait(self) -> None:
        while (event := self._events.get()) is not None:
            with suppress(Exception):  # whoever takes the step's result is told
                event.synchronize()
            os.eventfd_write(self._own, 1)
