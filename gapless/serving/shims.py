"""What upstream cannot be told through its interfaces: where it names CUDA, and what stands there.

Each shim names the file and the text of upstream that it works around; a test looks for them, so
that a new version of upstream in which one is not needed any more, or not enough, is noticed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Shim:
    """One of them."""

    install: Callable[[], None]
    file: str  # of upstream, below the package vllm
    texts: tuple[str, ...]  # what in it makes the shim necessary


def _streams_and_events() -> None:
    class Event:
        def __new__(cls, enable_timing: bool = False, blocking: bool = False, **_: Any) -> Any:
            return torch.Event("gapless", enable_timing=enable_timing, blocking=blocking)

    class Stream:
        def __new__(cls, device: Any = None, priority: int = 0, **_: Any) -> Any:
            return torch.Stream(device if device is not None else "gapless", priority=priority)

    cuda: Any = torch.cuda
    cuda.Event = Event
    cuda.Stream = Stream
    cuda.current_stream = torch.accelerator.current_stream
    cuda.set_stream = torch.accelerator.set_stream
    cuda.stream = lambda stream: stream if stream is not None else nullcontext()


def _current_stream() -> None:
    module: Any = importlib.import_module("vllm.utils.torch_utils")
    module.current_stream = torch.accelerator.current_stream
    # Those that imported it by name.
    for name in ("vllm.compilation.cuda_graph",):
        importer: Any = importlib.import_module(name)
        importer.current_stream = torch.accelerator.current_stream


def _graphs() -> None:
    from gapless.device.graphs import Graph
    from gapless.serving import graphs

    cuda: Any = torch.cuda
    cuda.CUDAGraph = Graph
    cuda.graph = graphs.capture
    cuda.graph_pool_handle = graphs.PoolHandle


def _weak_references() -> None:
    # A piece of work holds addresses, not tensors: nothing else is needed to let go of one.
    module: Any = importlib.import_module("vllm.compilation.cuda_graph")
    module.weak_ref_tensors = lambda tensors: tensors


# Each is compiled by torch.compile at its first call, which is seconds in somebody's first request.
COMPILED_HELPERS = (
    ("vllm.v1.sample.ops.logprobs", "batched_count_greater_than"),
    ("vllm.v1.sample.sampler", "batched_count_greater_than"),
    ("vllm.model_executor.layers.vocab_parallel_embedding", "get_masked_input_and_mask"),
)


def _compiled_helpers() -> None:
    for module_name, name in COMPILED_HELPERS:
        module = importlib.import_module(module_name)
        setattr(module, name, original(getattr(module, name)))


def original(compiled: Any) -> Any:
    """The function that torch.compile was given."""
    return getattr(compiled, "_torchdynamo_orig_callable", compiled)


def _grammar_masks() -> None:
    from gapless.serving.grammar import GrammarLibrary

    module: Any = importlib.import_module("vllm.v1.structured_output.utils")
    module.xgr = GrammarLibrary(module.xgr)


def _kernel_warmup() -> None:
    # It warms kernels of Triton and CUDA, and imports the models that need them.
    module: Any = importlib.import_module("vllm.v1.worker.gpu_worker")
    module.kernel_warmup = lambda worker, **_: None


def _thread_count() -> None:
    # One thread for the whole process would be one for the device as well.
    module: Any = importlib.import_module("vllm.v1.worker.gpu_worker")
    module.set_torch_threads_for_runtime = lambda: None


def _profiler() -> None:
    # It knows the devices of torch.profiler by name; the worker records in its own way.
    module: Any = importlib.import_module("vllm.v1.worker.gpu_worker")
    module.validate_worker_profiler_config = lambda config: None


def _discarded_samples() -> None:
    # A part of a prompt is sampled from and the sample thrown away: its generator is set back by
    # four, as CUDA's count. The device's count one for each operator, so three go on top first;
    # else a seed's tokens would depend on how many parts its prompt was cut into.
    module: Any = importlib.import_module("vllm.v1.worker.gpu_model_runner")
    bookkeeping = module.GPUModelRunner._bookkeeping_sync

    def with_offsets(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        for index in self.discard_request_mask.np[: batch.num_reqs].nonzero()[0]:
            if (generator := batch.generators.get(int(index))) is not None:
                generator.set_offset(generator.get_offset() + 3)
        return bookkeeping(self, *args, **kwargs)

    module.GPUModelRunner._bookkeeping_sync = with_offsets


SHIMS = (
    Shim(
        _discarded_samples,
        "v1/worker/gpu_model_runner.py",
        ("                gen.set_offset(gen.get_offset() - 4)",),
    ),
    Shim(
        _streams_and_events,
        "v1/worker/gpu_model_runner.py",
        (
            "self.async_output_copy_stream = torch.cuda.Stream()",
            "torch.cuda.Event(blocking=True)",
            "default_stream = torch.cuda.current_stream()",
            "with torch.cuda.stream(async_output_copy_stream):",
        ),
    ),
    Shim(
        _current_stream,
        "utils/torch_utils.py",
        (
            "def current_stream() -> torch.cuda.Stream:",
            "torch.cuda.set_stream = _patched_set_stream",
        ),
    ),
    Shim(
        _graphs,
        "compilation/cuda_graph.py",
        ("cudagraph = torch.cuda.CUDAGraph()", "with torch.cuda.graph("),
    ),
    Shim(
        _weak_references,
        "utils/torch_utils.py",
        ("return torch.ops._C.weak_ref_tensor(tensor)",),
    ),
    Shim(
        _compiled_helpers,
        "v1/sample/ops/logprobs.py",
        ("@torch.compile(backend=current_platform.simple_compile_backend)",),
    ),
    Shim(
        _grammar_masks,
        "v1/structured_output/utils.py",
        (
            'xgr = LazyLoader("xgr", globals(), "xgrammar")',
            "xgr.apply_token_bitmask_inplace(logits, grammar_bitmask, indices=index_tensor)",
        ),
    ),
    Shim(_kernel_warmup, "v1/worker/gpu_worker.py", ("        kernel_warmup(self)\n",)),
    Shim(
        _profiler,
        "v1/worker/gpu_worker.py",
        ("        validate_worker_profiler_config(self.profiler_config)\n",),
    ),
    Shim(_thread_count, "v1/worker/gpu_worker.py", ("        set_torch_threads_for_runtime()\n",)),
)
_installed = False


def install() -> None:
    """Put every shim in place; once in a process."""
    global _installed
    if not _installed:
        _installed = True
        for shim in SHIMS:
            shim.install()
