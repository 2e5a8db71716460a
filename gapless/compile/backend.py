"""The backend ``gapless`` of ``torch.compile``, found through its entry point."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from gapless.compile.mode import CompileMode
from gapless.compile.static_programs import StaticPrograms
from gapless.errors import UsageError

_number = itertools.count()


def gapless_backend(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile a graph of the device, forward and backward, into programs of fixed shapes.

    A program is made at the first call with its shapes, or found in the artifact cache.

    Args:
        graph_module: as Dynamo traced it.
        example_inputs: tensors and sizes that it was traced with.
        options: ``torch.compile``'s. ``mode``: ``background``, ``wait`` or ``never`` in place of
            ``GAPLESS_COMPILE``; ``shapes_limit``: so many programs per graph at most (64).

    Raises:
        UsageError: an option is unknown or has a value that means nothing.
    """
    chosen = _checked(options or {})
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    number = next(_number)

    def compiler(kind: str) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
        def compile_graph(graph: fx.GraphModule, _: Sequence[Any]) -> Any:
            programs = StaticPrograms(graph, f"{kind} {number}", **chosen)

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


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name, value in options.items():
        if name == "mode":
            values = [mode.value for mode in CompileMode]
            if value not in values:
                raise UsageError(f"mode={value!r}: must be one of {', '.join(values)}")
            chosen["mode"] = CompileMode(value)
        elif name == "shapes_limit":
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"shapes_limit={value!r}: must be a whole number of at least 1")
            chosen["shapes_limit"] = value
        else:
            raise UsageError(f"unknown option {name!r} of the backend; it has mode, shapes_limit")
    return chosen
