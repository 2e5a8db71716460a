"""How long the device ran and idled from step to step, by events of the device itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import monotonic_ns

import torch

from gapless.profile import ranges
from gapless.profile.steps import NOTHING_WANTED
from gapless.serving.metrics_page import MetricsPage


@dataclass(frozen=True)
class _Step:
    start: torch.Event
    end: torch.Event
    after_idle: bool


class StepMeter:
    """Counts a step's time and the gap before it, once the step is known to have ended."""

    def __init__(self, page: MetricsPage, device: torch.device) -> None:
        self._page = page
        self._device = device
        self._start: torch.Event | None = None
        self._flying: deque[_Step] = deque()
        self._last_end: torch.Event | None = None
        self._after_idle = False
        self._read_ns: int | None = None

    @property
    def has_begun(self) -> bool:
        """Whether a step is being submitted."""
        return self._start is not None

    def begin(self) -> None:
        """What is submitted from now on is the next step's."""
        self._start = torch.Event(self._device, enable_timing=True)
        self._start.record()

    def end(self) -> None:
        """All of the step was submitted."""
        if self._start is None:
            return
        end = torch.Event(self._device, enable_timing=True)
        end.record()
        self._flying.append(_Step(self._start, end, self._after_idle))
        self._after_idle = False
        self._start = None
        self._page.set("steps_in_flight", len(self._flying))

    def idle(self) -> None:
        """No request was waiting: the time before the next step is nobody's gap."""
        self._after_idle = True
        if self._read_ns is not None and ranges.is_on():
            ranges.append(NOTHING_WANTED, -1, self._read_ns, monotonic_ns())

    def read(self) -> None:
        """The oldest step's results were read."""
        if not self._flying:
            return
        step = self._flying.popleft()
        self._page.set("steps_in_flight", len(self._flying))
        step.end.synchronize()
        busy_us = step.start.elapsed_time(step.end) * 1e3
        self._page.add("busy_us", busy_us)
        self._page.add("elapsed_us", busy_us)
        if self._last_end is not None and not step.after_idle:
            gap_us = max(0.0, self._last_end.elapsed_time(step.start) * 1e3)
            self._page.count_gap(gap_us)
            self._page.add("elapsed_us", gap_us)
        self._last_end = step.end
        self._read_ns = monotonic_ns()
