"""An operator that stops a stream until the host opens its gate."""

import threading

import torch

TIMEOUT_S = 60.0

_library = torch.library.Library("gapless_tests", "FRAGMENT")
_gates: dict[int, threading.Event] = {}


def _wait_at_gate(tensor: torch.Tensor, gate: int) -> None:
    if not _gates[gate].wait(TIMEOUT_S):
        raise RuntimeError(f"gate {gate} was not opened within {TIMEOUT_S:.0f} s")


_library.define("wait_at_gate(Tensor(a!) tensor, int gate) -> ()")
_library.impl("wait_at_gate", _wait_at_gate, "CPU")


def hold(gate: int, device: int) -> None:
    """Stop the current stream at this place."""
    _gates[gate] = threading.Event()
    tensor = torch.empty(1, device=f"gapless:{device}")
    torch.ops.gapless_tests.wait_at_gate(tensor, gate)


def release(gate: int) -> None:
    """Let it go on."""
    _gates[gate].set()


def release_all() -> None:
    """Open every gate, after something else went wrong."""
    for event in _gates.values():
        event.set()


def forget_all() -> None:
    """Drop the gates; no stream may be at one."""
    _gates.clear()
