"""From a graph that was traced on the device to one for the compiler of the host's processor.

The compiler does not know the device, and need not: a program runs on the stream's thread, where
the device's memory is within its reach. The graph is therefore traced again on fake CPU tensors of
the operands' layouts. Sizes become constants on the way, and results become operands to write to.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

DEVICE = "gapless"


@dataclass(frozen=True)
class Layout:
    """A tensor without its values: sizes and strides in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """The layout of a tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


@dataclass(frozen=True)
class Result:
    """What a graph returns in one place.

    ``kind`` is ``tensor`` (fresh, with ``layout``), ``operand`` (the argument at ``index``) or
    ``value`` (not a tensor).
    """

    kind: str
    layout: Layout | None = None
    index: int = -1
    value: Any = None


@dataclass(frozen=True)
class HostGraph:
    """A graph of fixed shapes on CPU tensors, which returns nothing.

    Its operands are the tensors among the graph's arguments, then its constants, then one tensor
    for each fresh result.
    """

    module: fx.GraphModule
    operands: tuple[Layout, ...]
    written: tuple[bool, ...]
    constants: tuple[torch.Tensor, ...]
    results: tuple[Result, ...]


def reason_against(graph_module: fx.GraphModule) -> str | None:
    """Why the graph cannot become a program, in a few words; None if it can."""
    for node in graph_module.graph.nodes:
        if node.op == "call_module":
            return f"it calls the module {node.target}"
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            # A program has no part in the device's generator, whose numbers a replay must repeat.
            return f"{node.target} draws random numbers"
        if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
            return f"the shape of what {node.target} returns depends on values"
    return None


def host_graph(graph_module: fx.GraphModule, arguments: Sequence[Any]) -> HostGraph:
    """Trace the graph again for the layouts of these arguments.

    Args:
        graph_module: as AOTAutograd gives it: functional but for writes to its arguments.
        arguments: tensors, numbers where a size is an argument, or None.
    """
    body, constants = without_device(graph_module)
    return trace_on_host(body, arguments, constants)


def trace_on_host(
    body: fx.GraphModule, arguments: Sequence[Any], constants: Sequence[torch.Tensor]
) -> HostGraph:
    """The second half of ``host_graph``: of tensors only their layouts are looked at.

    Args:
        body: what ``without_device`` gave.
        arguments: as for ``host_graph``.
        constants: what ``without_device`` gave, or tensors of the same layouts.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
            )

    places = [i for i, value in enumerate(arguments) if isinstance(value, torch.Tensor)]
    tensors = [fake(arguments[i]) for i in places] + [fake(constant) for constant in constants]

    def call(given: Sequence[torch.Tensor]) -> list[Any]:
        full = list(arguments)
        for i, tensor in zip(places, given, strict=False):
            full[i] = tensor
        returned = body(*full, *given[len(places) :])
        return list(returned) if isinstance(returned, (tuple, list)) else [returned]

    with mode, torch.no_grad():
        returned = call(tensors)
    results = tuple(_result(value, tensors) for value in returned)
    fresh = [r.layout for r in results if r.kind == "tensor" and r.layout is not None]
    outputs = []
    with mode:
        outputs = [
            torch.empty_strided(each.size, each.stride, dtype=each.dtype, device="cpu")
            for each in fresh
        ]

    def write(*operands: torch.Tensor) -> tuple[()]:
        values = call(operands[: len(tensors)])
        computed = [v for v, r in zip(values, results, strict=True) if r.kind == "tensor"]
        for output, value in zip(operands[len(tensors) :], computed, strict=True):
            output.copy_(value)
        return ()

    with mode, torch.no_grad():
        module = make_fx(write, tracing_mode="real")(*tensors, *outputs)
    module.graph.eliminate_dead_code()
    module.recompile()
    layouts = tuple(Layout.of(tensor) for tensor in (*tensors, *outputs))
    written = _written(module, len(tensors))
    return HostGraph(module, layouts, written, tuple(constants), results)


def _result(value: Any, operands: Sequence[torch.Tensor]) -> Result:
    if not isinstance(value, torch.Tensor):
        return Result("value", value=value)
    for index, operand in enumerate(operands):
        if value is operand:
            return Result("operand", index=index)
    return Result("tensor", layout=Layout.of(value))


def _written(module: fx.GraphModule, inputs: int) -> tuple[bool, ...]:
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    mutated: set[fx.Node] = set(placeholders[inputs:])
    for node in module.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info and argument.alias_info.is_write and isinstance(value, fx.Node):
                mutated.add(_base(value))
    return tuple(node in mutated for node in placeholders)


def _base(node: fx.Node) -> fx.Node:
    # Through views, to the argument that they are of.
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def without_device(
    graph_module: fx.GraphModule,
) -> tuple[fx.GraphModule, tuple[torch.Tensor, ...]]:
    """The graph on the CPU, its constant tensors as further arguments at the end; and these."""
    graph = copy.deepcopy(graph_module.graph)
    constants: list[torch.Tensor] = []
    last = None
    for node in graph.nodes:
        if node.op == "placeholder":
            last = node
    for node in list(graph.nodes):
        if node.op == "get_attr":
            value = _attribute(graph_module, str(node.target))
            if isinstance(value, torch.Tensor):
                with graph.inserting_after(last) if last else graph.inserting_before():
                    last = graph.placeholder(f"constant_{len(constants)}")
                constants.append(value)
                node.replace_all_uses_with(last)
                graph.erase_node(node)
                continue
        node.meta = {}  # sizes as symbols, and tensors that are not there
        node.args = fx.node.map_aggregate(node.args, _on_host)
        node.kwargs = fx.node.map_aggregate(node.kwargs, _on_host)
    return fx.GraphModule(graph_module, graph), tuple(constants)


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == DEVICE:
        return torch.device("cpu")
    return value


def _attribute(module: torch.nn.Module, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value
