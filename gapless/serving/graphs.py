"""The device's graphs under the names by which vLLM's graph wrapper calls those of CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from gapless.device.graphs import Graph
from gapless.serving.device_cores import small_kernels
from gapless.serving.metrics_page import engine_page


class PoolHandle:
    """Memory that graphs share; it exists from the first capture on."""

    def __init__(self) -> None:
        self._first: Graph | None = None

    def id_for(self, graph: Graph) -> tuple[int, int] | None:
        """The pool that a capture should use; None for the first, which makes it."""
        if self._first is None:
            self._first = graph
            return None
        return self._first.pool()


@contextmanager
def capture(
    graph: Graph, pool: PoolHandle | None = None, stream: torch.Stream | None = None, **_: Any
) -> Iterator[None]:
    """Record the work of the block in the graph, on that stream."""
    if pool is not None:
        graph.graph_pool = pool.id_for(graph)
    # Not ``with graph``: it collects garbage first, a quarter of a second for each bucket here.
    with stream or nullcontext():
        torch.accelerator.synchronize()
        graph.capture_begin()
        try:
            with small_kernels(_tokens()):
                yield
        finally:
            graph.capture_end()
    engine_page().add("graph_captures")


def _tokens() -> int:
    """Of the batch that is captured."""
    from vllm.forward_context import get_forward_context

    batch = get_forward_context().batch_descriptor
    assert batch is not None
    return int(batch.num_tokens)
