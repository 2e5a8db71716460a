"""The backend ``gapless`` of ``torch.compile``, found through its entry point."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from gapless.compile.static_programs import StaticPrograms

_number = itertools.count()


def gapless_backend(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """Compile a graph of the device, forward and backward, into programs of fixed shapes.

    A program is made at the first call with its shapes, or found in the artifact cache.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    number = next(_number)

    def compiler(kind: str) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
        def compile_graph(graph: fx.GraphModule, _: Sequence[Any]) -> Any:
            programs = StaticPrograms(graph, f"{kind} {number}")

            def boxed(arguments: list[Any]) -> Any:
                given = list(arguments)
                arguments.clear()  # the caller's references may go as soon as they are used
                return programs(given)

            boxed._boxed_call = True  # type: ignore[attr-defined]
            return boxed

        return compile_graph

    compiled = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=select_decomp_table(),
        keep_inference_input_mutations=True,
    )
    return compiled(graph_module, example_inputs)
