"""AOTInductor: from a graph of fixed shapes to a shared object."""

from __future__ import annotations

import functools
import hashlib
import shutil
import tempfile
from pathlib import Path

import torch

import gapless
from gapless.compile.host_graph import HostGraph

SHARED_OBJECT = "program.so"


def key_of(graph: HostGraph) -> str:
    """The artifact's name: of the graph, its operands' layouts, the compiler and the processor.

    Weights are operands, so that their values are not part of it.
    """
    text = "\n".join([graph.module.code, *map(repr, graph.operands), *environment()])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.cache
def environment() -> tuple[str, ...]:
    """What a program depends on beside its graph."""
    return (
        f"gapless {gapless.__version__}",
        f"torch {torch.__version__} {torch.version.git_version}",
        f"processor {torch.backends.cpu.get_cpu_capability()}",
        f"threads {device_threads()}",
    )


def device_threads() -> int:
    """Threads of one kernel on the device, which the compiler writes into the program."""
    return int(torch.gapless.get_device_properties().cores)  # type: ignore[attr-defined]


def compile_into(graph: HostGraph, folder: Path) -> None:
    """Compile the graph; ``folder`` gets the shared object and what it reads at run time.

    Raises:
        Exception: whatever the compiler raises.
    """
    from torch._inductor import aot_compile

    inputs = tuple(
        torch.empty_strided(each.size, each.stride, dtype=each.dtype) for each in graph.operands
    )
    with tempfile.TemporaryDirectory(prefix="gapless-compile-") as build:
        path = Path(build) / SHARED_OBJECT
        options = {"aot_inductor.output_path": str(path), "cpp.threads": device_threads()}
        with torch.no_grad():
            aot_compile(graph.module, inputs, options=options)
        shutil.copy(path, folder / SHARED_OBJECT)
        for described in Path(build).glob("*.json"):  # operators without code of the compiler's
            if "metadata" not in described.name:
                shutil.copy(described, folder / described.name)
