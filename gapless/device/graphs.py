"""Graphs of the device: ``torch.accelerator.Graph`` with a leaner replay."""

import gc
from types import TracebackType
from typing import Self

import torch

from gapless import _C


class Graph(_C.Graph):
    """Work recorded once and replayed with one submit.

    The same graph as ``torch.accelerator.Graph``, for callers to whom some tens of microseconds per
    replay matter: ``bind_replay(event)`` gives a function without arguments that replays and
    records the event after it, without the layers in between.

    Args:
        keep_graph: accepted for the sake of the common interface; a capture is always kept.
        pool: the memory pool of another graph, from its ``pool()``, to share; the graphs must not
            run at the same time.
        capture_error_mode: accepted for the sake of the common interface; a capture concerns the
            current stream alone.
    """

    def __init__(
        self,
        keep_graph: bool = False,
        *,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "default",
    ) -> None:
        super().__init__()
        self.graph_pool = pool

    def capture_begin(self) -> None:
        """Record the current stream's work from now on, instead of running it.

        Raises:
            RuntimeError: this graph holds a capture, or the stream is being captured already.
        """
        self._capture_begin(self.graph_pool)

    def __enter__(self) -> Self:
        torch.accelerator.synchronize()
        gc.collect()
        torch.accelerator.empty_cache()
        self.capture_begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.capture_end()
