"""One table and one JSON file per benchmark: this, the peer, the limit, the ratio, the machine."""

import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Measurement:
    """One row. ``ratio`` in the table is ``value / peer``; every repeat is kept in the JSON."""

    name: str
    value: float
    unit: str
    peer: float | None = None
    peer_name: str = ""
    limit: float | None = None
    repeats: tuple[float, ...] = ()


@dataclass(frozen=True)
class Machine:
    """Where and under what load the numbers were taken."""

    processor: str
    cores: int
    device_cores: int | None  # None: each participant has its own
    load_before: float
    load_after: float
    torch_version: str


def load() -> float:
    """Runnable threads, averaged over the last minute."""
    return os.getloadavg()[0]


def processor() -> str:
    """The processor's name as Linux tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def publish(title: str, rows: list[Measurement], load_before: float) -> None:
    """Print the table; write it as JSON where ``--json FILE`` is on the command line."""
    table = Table(title=title, title_justify="left")
    for column in ("measured", "this", "unit", "peer", "ratio", "limit", "within"):
        table.add_column(column, justify="left" if column in ("measured", "unit") else "right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.value:.2f}",
            row.unit,
            "" if row.peer is None else f"{row.peer:.2f} ({row.peer_name})",
            "" if row.peer is None else f"{row.value / row.peer:.2f}",
            "" if row.limit is None else f"{row.limit:g}",
            "" if row.limit is None else ("yes" if row.value <= row.limit else "NO"),
        )
    console = Console(width=max(100, Console().width))
    console.print(table)
    store(rows, load_before, console)


def store(
    rows: list[Measurement], load_before: float, console: Console, *, has_device: bool = True
) -> None:
    """Print what the machine was; write all as JSON where ``--json FILE`` asks for it.

    ``has_device`` is False where other processes used the device, each with cores of its own.
    """
    machine = Machine(
        processor=processor(),
        cores=len(os.sched_getaffinity(0)),
        device_cores=torch.gapless.get_device_properties().cores if has_device else None,
        load_before=load_before,
        load_after=load(),
        torch_version=torch.__version__,
    )
    device = f" ({machine.device_cores} for the device)" if machine.device_cores else ""
    console.print(
        f"{machine.processor}, {machine.cores} cores{device}, "
        f"load {machine.load_before:.1f} before and {machine.load_after:.1f} after, "
        f"torch {machine.torch_version}"
    )
    if "--json" in sys.argv:
        path = Path(sys.argv[sys.argv.index("--json") + 1])
        content = {"machine": asdict(machine), "rows": [asdict(row) for row in rows]}
        path.write_text(json.dumps(content, indent=2) + "\n")
