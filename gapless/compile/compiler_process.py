"""Compiling in a process of its own, while this one goes on.

The compiler traces, and PyTorch's tracers set flags for the whole process that compiled functions
stumble over; and it is Python for seconds, which would keep the global lock from who has a device
to feed. The other process gets the graph and answers with the recipe; what is compiled lies in the
artifact cache. Both ends are ours, so that pickles between them are safe.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from gapless.compile.errors import CompileError
from gapless.compile.program import Recipe, make_recipe

# The other process must neither record nor watch; it only asks the device for its cores.
_NOT_INHERITED = ("GAPLESS_RECORD", "GAPLESS_INSPECT_ENABLE", "GAPLESS_WATCHDOG_S")
_NICENESS = 10
# What torch.compile has imported in the process that asks, and the compiler relies on.
_IMPORTED_BY_COMPILE = (
    "torch._dynamo",
    "torch._higher_order_ops.triton_kernel_wrap",
    "torch._inductor.compile_fx",
)


def pickled_request(
    body: fx.GraphModule, arguments: Sequence[Any], constants: Sequence[torch.Tensor], name: str
) -> bytes | None:
    """What the other process needs; None for a graph that cannot be sent.

    Args:
        body: the graph, see ``host_graph.without_device``.
        arguments: tensors without values (on ``meta``) and other values.
        constants: tensors without values.
        name: what progress calls the program.
    """
    stream = io.BytesIO()
    try:
        pickle.dump((body, list(arguments), list(constants), name), stream)
    except Exception:  # whatever a graph holds may refuse in its own way
        return None
    return stream.getvalue()


def make_elsewhere(request: bytes) -> Recipe:
    """Have ``make_recipe`` run by another process, and wait for it.

    Raises:
        CompileError: the program cannot be made there.
    """
    environment = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        # PyTorch's tracers warn of PyTorch's own code.
        [sys.executable, "-W", "ignore", "-c", f"from {__name__} import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    reply, _ = process.communicate(request)
    if process.returncode != 0 or not reply:
        raise CompileError(
            f"the process that compiles ended with {process.returncode} and no program; its output "
            "is above; GAPLESS_COMPILE=wait compiles in this process"
        )
    recipe, error = pickle.loads(reply)
    if error is not None:
        raise CompileError(f"a program cannot be compiled: {error}")
    assert isinstance(recipe, Recipe)
    return recipe


def main() -> None:
    """Answer one request, from standard input to standard output."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the compiler prints is no reply
    os.nice(_NICENESS)
    recipe, error = None, None
    try:
        for module in _IMPORTED_BY_COMPILE:
            importlib.import_module(module)
        body, arguments, constants, name = pickle.load(sys.stdin.buffer)
        recipe = make_recipe(body, arguments, constants, name, may_compile=True)
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    with replies:
        pickle.dump((recipe, error), replies)
