"""Marks on the timeline: which step the submitted work belongs to, and what the host is doing.

The one place where the pipeline touches the profiler. Both marks are optional: ranges need
``gapless.profile``, step numbers need a device that records, and on any other accelerator the
loop runs without them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

import torch

SetStep = Callable[[int], None]
HostRange = Callable[[str, int], AbstractContextManager[object]]


def step_setter(device: torch.device) -> SetStep:
    """A function that tells the device's recorder the step of the work submitted from now on.

    Ask for it when a run begins: where nothing is recorded then, it does nothing, and costs less.
    """
    if device.type == "gapless":
        recorder = importlib.import_module("gapless.device.recorder")
        if recorder.is_on():
            return cast(SetStep, recorder.set_step)
    return ignore_step


def ignore_step(step: int) -> None:
    """What is called with each step where nobody records."""


def token_counter() -> Callable[[int], None]:
    """A function that tells the profiler how many tokens a step gave."""
    count_tokens = _find("gapless.profile.tokens", "count_tokens")
    return cast(Callable[[int], None], count_tokens or ignore_step)


def process_namer() -> Callable[[str], None]:
    """A function that tells the profiler what this process is called."""
    name_process = _find("gapless.profile.process_name", "name_process")
    return cast(Callable[[str], None], name_process or (lambda name: None))


def host_ranges() -> HostRange:
    """A function ``(name, step) -> context manager`` that marks what the host does meanwhile."""
    host_range = _find("gapless.profile.ranges", "host_range")
    if host_range is not None:
        return cast(HostRange, host_range)
    nothing = nullcontext()
    return lambda name, step: nothing


def ranges_are_recorded() -> bool:
    """Whether somebody records what the host does."""
    is_on = _find("gapless.profile.ranges", "is_on")
    return bool(is_on is not None and is_on())


class Phases(Protocol):
    """What the host does, one thing after the other; see ``gapless.profile.phases``."""

    def begin(self, name: str, step: int = -1) -> None:
        """Do this from now on."""

    def end(self) -> None:
        """Do nothing more."""


class _NoPhases:
    def begin(self, name: str, step: int = -1) -> None:
        pass

    def end(self) -> None:
        pass


def host_phases() -> Phases:
    """Marks of a loop's own, whose ranges touch each other."""
    return cast(Phases, (_find("gapless.profile.phases", "Phases") or _NoPhases)())


def _find(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
