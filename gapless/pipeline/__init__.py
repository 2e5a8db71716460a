"""Loops that keep any accelerator busy.

``Pipeline`` runs a function over inputs, double-buffered; ``AsyncExecutor`` does so in many
processes. For autoregressive models ``decode_step``
is one step with its state on the device, ``step_program`` submits it (as a graph where there is
one), and ``decode_loop`` drives it sequentially or double-buffered. Nothing here is particular to
gapless: only ``torch.accelerator``, ``torch.Stream`` and ``torch.Event`` are used.
"""

from gapless.pipeline.async_executor import AsyncExecutor
from gapless.pipeline.captured_step import CapturedStep
from gapless.pipeline.host_waits import HostWait
from gapless.pipeline.mapped_results import MappedResults
from gapless.pipeline.pipeline import Pipeline
from gapless.pipeline.pipeline_statistics import PipelineStatistics
from gapless.pipeline.pipeline_warning import PipelineWarning
from gapless.pipeline.step_error import StepError
from gapless.pipeline.warm_parent import WarmParent
from gapless.pipeline.worker_error import WorkerError

__all__ = [
    "AsyncExecutor",
    "CapturedStep",
    "HostWait",
    "MappedResults",
    "Pipeline",
    "PipelineStatistics",
    "PipelineWarning",
    "StepError",
    "WarmParent",
    "WorkerError",
]
