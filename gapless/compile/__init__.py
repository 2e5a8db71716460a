"""``torch.compile(model, backend="gapless")``: compiled programs for the device.

A graph that PyTorch traced is compiled once per shape by AOTInductor into a shared object, kept in
the artifact cache, and launched from the stream's native thread as one piece of work. Weights are
operands of a program and no part of it, so that layers which look alike share one artifact.
"""

from gapless.compile.backend import gapless_backend
from gapless.compile.buckets import Bucketed, BucketStatistics, Paddable
from gapless.compile.compiler_thread import wait_until_compiled
from gapless.compile.mode import CompileMode
from gapless.compile.statistics import CompileStatistics, reset_statistics, statistics

__all__ = [
    "BucketStatistics",
    "Bucketed",
    "CompileMode",
    "CompileStatistics",
    "Paddable",
    "gapless_backend",
    "reset_statistics",
    "statistics",
    "wait_until_compiled",
]
