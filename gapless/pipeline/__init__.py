"""Loops that keep any accelerator busy.

``Pipeline`` runs a function over inputs, double-buffered; ``AsyncExecutor`` does so in many
processes. ``DecodeLoop`` generates with a language model for sequences that come and go. Under it
``decode_step`` is one step with its state on the device, ``step_program`` submits it (as a graph
where there is one), and ``batch_loop`` drives it for one batch that begins together. Nothing here
is particular to gapless: only ``torch.accelerator``, ``torch.Stream`` and ``torch.Event`` are used.
"""

from typing import TYPE_CHECKING, Any

from gapless.pipeline.async_executor import AsyncExecutor
from gapless.pipeline.captured_step import CapturedStep
from gapless.pipeline.host_waits import HostWait
from gapless.pipeline.loop_results import LoopStatistics, LoopStep, NewToken
from gapless.pipeline.mapped_results import MappedResults
from gapless.pipeline.pipeline import Pipeline
from gapless.pipeline.pipeline_statistics import PipelineStatistics
from gapless.pipeline.pipeline_warning import PipelineWarning
from gapless.pipeline.sampling import Sampling
from gapless.pipeline.step_error import StepError
from gapless.pipeline.warm_parent import WarmParent
from gapless.pipeline.worker_error import WorkerError

if TYPE_CHECKING:
    from gapless.pipeline.decode_loop import DecodeLoop

__all__ = [
    "AsyncExecutor",
    "CapturedStep",
    "DecodeLoop",
    "HostWait",
    "LoopStatistics",
    "LoopStep",
    "MappedResults",
    "NewToken",
    "Pipeline",
    "PipelineStatistics",
    "PipelineWarning",
    "Sampling",
    "StepError",
    "WarmParent",
    "WorkerError",
]


def __getattr__(name: str) -> Any:
    # The loop needs transformers, which takes seconds to import and which others do without.
    if name == "DecodeLoop":
        from gapless.pipeline.decode_loop import DecodeLoop

        return DecodeLoop
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
