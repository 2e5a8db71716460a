"""The graph that the compiler gets, without compiling it."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gapless.compile.compiler import key_of
from gapless.compile.host_graph import host_graph, reason_against


def traced(function, *arguments):
    return make_fx(function, tracing_mode="fake")(*arguments)


def run(graph, *operands):
    """Run the host's graph on real CPU tensors; returns the fresh results."""
    results = [
        torch.empty_strided(r.layout.size, r.layout.stride, dtype=r.layout.dtype)
        for r in graph.results
        if r.kind == "tensor"
    ]
    constants = [constant.cpu() for constant in graph.constants]
    assert graph.module(*operands, *constants, *results) == ()
    return results


def test_results_are_written_to_operands_with_the_layout_of_eager():
    x = torch.randn(3, 4, device="gapless")
    graph = host_graph(traced(lambda x: ((x * 2).t(), x.sum()), x), (x,))
    assert graph.written == (False, True, True)
    transposed, total = run(graph, x.cpu())
    assert transposed.stride() == (1, 4)
    assert torch.equal(transposed, (x.cpu() * 2).t())
    assert torch.equal(total, x.cpu().sum())


def test_factories_of_the_device_become_the_hosts():
    x = torch.randn(3, device="gapless")
    graph = host_graph(traced(lambda x: x + torch.arange(3, device="gapless"), x), (x,))
    assert torch.equal(run(graph, x.cpu())[0], x.cpu() + torch.arange(3))


def test_constants_become_operands():
    constant = torch.tensor([1.0, 2, 3], device="gapless")
    x = torch.randn(3, device="gapless")
    nodes = torch.fx.Graph()
    given = nodes.placeholder("x")
    root = torch.nn.Module()
    root.register_buffer("constant", constant)
    nodes.output(
        nodes.call_function(torch.ops.aten.add.Tensor, (given, nodes.get_attr("constant")))
    )
    module = torch.fx.GraphModule(root, nodes)
    graph = host_graph(module, (x,))
    assert len(graph.constants) == 1
    assert torch.equal(run(graph, x.cpu())[0], x.cpu() + constant.cpu())


def test_an_argument_that_is_returned_stays_itself():
    x, y = torch.ones(2, device="gapless"), torch.ones(2, device="gapless")
    graph = host_graph(traced(lambda x, y: (y, x + 1, None), x, y), (x, y))
    assert [r.kind for r in graph.results] == ["operand", "tensor", "value"]
    assert graph.results[0].index == 1


def test_an_argument_that_is_written_to_is_known():
    def add_to_a_row(x, y):
        x[0].add_(y)
        return ()

    x, y = torch.ones(2, 3, device="gapless"), torch.ones(3, device="gapless")
    graph = host_graph(traced(add_to_a_row, x, y), (x, y))
    assert graph.written == (True, False)


def test_the_key_knows_shapes_but_not_values():
    def key(x, function=lambda x: x * 2):
        return key_of(host_graph(traced(function, x), (x,)))

    x = torch.ones(3, 4, device="gapless")
    assert key(x) == key(x + 1)
    others = [
        key(torch.ones(4, 4, device="gapless")),
        key(torch.ones(4, 3, device="gapless").t()),
        key(x.double()),
        key(x, lambda x: x * 3),
    ]
    assert len({key(x), *others}) == 5


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (torch.ops.aten.rand_like.default, "draws random numbers"),
        (torch.ops.aten.nonzero.default, "depends on values"),
        (torch.ops.aten.neg.default, None),
    ],
)
def test_why_a_graph_is_no_program(target, reason):
    nodes = torch.fx.Graph()
    nodes.output(nodes.call_function(target, (nodes.placeholder("x"),)))
    found = reason_against(torch.fx.GraphModule({}, nodes))
    assert found is None if reason is None else reason in found
