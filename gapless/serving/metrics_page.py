"""Numbers that the engine's process writes and the server's process reads, without a message.

A page is a small file of 64-bit floats, mapped by both. Writing a number is one store, so that a
step can afford it; a page outlives a process that was killed, and goes with the folder, which the
process that made it removes.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gapless.cache.own_folder import lives, own_folder

FOLDER_VARIABLE = "GAPLESS_METRICS_DIR"
GAP_BOUNDS_US = (10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 10e3, 30e3, 100e3, 1e6)
STEP_KINDS = ("decode_graph", "decode_eager", "mixed", "pooling")
# Why the host waited for the device within a step, or had the device wait for it.
WAIT_REASONS = (
    "synchronous_scheduling",  # asynchronous scheduling is switched off
    "grammar",  # the mask of a step needs the token of the step before
    "earlier_tokens",  # penalties, bad words, min tokens: the host reads the step before
    "prompt_logprobs",
)
_NUMBERS = (
    *(f"gaps_le_{bound:g}" for bound in GAP_BOUNDS_US),
    "gaps",
    "gap_us",
    "busy_us",
    "elapsed_us",
    *(f"steps_{kind}" for kind in STEP_KINDS),
    *(f"waits_{reason}" for reason in WAIT_REASONS),
    "steps_in_flight",
    "running_requests",
    "tokens",
    "padded_tokens",
    "graph_replays",
    "graph_captures",
    "departures",
    "packed_layers",
    "unpacked_layers",
)
_OFFSETS = {name: 8 * index for index, name in enumerate(_NUMBERS)}
_NAME_BYTES = 256
_PREFIX = "gapless-metrics-"
_BYTES = 8 * len(_NUMBERS) + _NAME_BYTES


@dataclass(frozen=True)
class PageValues:
    """A page as it was read."""

    engine: str  # its process
    model: str
    device: str
    numbers: dict[str, float]


class MetricsPage:
    """One engine's numbers; written by one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Made under another name first: a reader never sees a page that is too short.
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.truncate(_BYTES)
            self._map = mmap.mmap(file.fileno(), _BYTES)
        os.replace(file.name, path)

    def name(self, model: str, device: str) -> None:
        """Say whose numbers they are."""
        text = f"{model[-200:]}\n{device}".encode()[: _NAME_BYTES - 1]
        self._map[-_NAME_BYTES : len(text) - _NAME_BYTES] = text

    def set(self, name: str, value: float) -> None:
        """Replace a number."""
        struct.pack_into("d", self._map, _OFFSETS[name], value)

    def add(self, name: str, value: float = 1.0) -> None:
        """Add to a number."""
        offset = _OFFSETS[name]
        struct.pack_into(
            "d", self._map, offset, struct.unpack_from("d", self._map, offset)[0] + value
        )

    def count_wait(self, reason: str) -> None:
        """One step in which something waited; the reason is one of WAIT_REASONS."""
        self.add(f"waits_{reason}")

    def count_gap(self, gap_us: float) -> None:
        """One idle gap between two steps."""
        for bound in GAP_BOUNDS_US:
            if gap_us <= bound:
                self.add(f"gaps_le_{bound:g}")
        self.add("gaps")
        self.add("gap_us", gap_us)


def metrics_folder() -> Path:
    """Where the pages of this process and of its children are; the first to ask makes it."""
    if path := os.environ.get(FOLDER_VARIABLE):
        return _usable(Path(path))
    folder = own_folder(_PREFIX)
    os.environ[FOLDER_VARIABLE] = str(folder)
    return folder


def _usable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise ValueError(
            f"{FOLDER_VARIABLE}={folder}: {error.strerror}; name a folder that can be "
            "written to, or unset it"
        ) from error


@cache
def engine_page() -> MetricsPage:
    """The page of this process's engine."""
    return MetricsPage(metrics_folder() / f"engine-{os.getpid()}.page")


def read_pages(folder: Path) -> Iterator[PageValues]:
    """The page of every engine that lives; one without the length of a page is left out."""
    for path in sorted(folder.glob("engine-*.page")):
        engine = path.stem.removeprefix("engine-")
        if not engine.isdigit() or not lives(int(engine)):
            continue
        try:
            data = path.read_bytes()
        except OSError:
            continue
        if len(data) != _BYTES:
            continue
        numbers = struct.unpack_from(f"{len(_NUMBERS)}d", data)
        model, _, device = (
            data[-_NAME_BYTES:].rstrip(b"\0").decode(errors="replace").partition("\n")
        )
        yield PageValues(engine, model, device, dict(zip(_NUMBERS, numbers, strict=True)))
