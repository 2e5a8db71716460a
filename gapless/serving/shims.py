"""What upstream cannot be told through its interfaces; each with the file that it works around."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from typing import Any

import torch

_installed = False


def install() -> None:
    """Put every shim in place; once in a process."""
    global _installed
    if _installed:
        return
    _installed = True
    _streams_and_events()
    _graphs()
    _weak_references()
    _compiled_helpers()
    _grammar_masks()
    _kernel_warmup()
    _thread_count()


def _streams_and_events() -> None:
    # v1/worker/gpu_model_runner.py, distributed/parallel_state.py: torch.cuda on generic paths.
    class Event:
        def __new__(cls, enable_timing: bool = False, blocking: bool = False, **_: Any) -> Any:
            return torch.Event("gapless", enable_timing=enable_timing, blocking=blocking)

    class Stream:
        def __new__(cls, device: Any = None, priority: int = 0, **_: Any) -> Any:
            return torch.Stream(device if device is not None else "gapless", priority=priority)

    torch.cuda.Event = Event  # type: ignore[assignment,misc]
    torch.cuda.Stream = Stream  # type: ignore[assignment,misc]
    torch.cuda.current_stream = lambda device=None: torch.accelerator.current_stream(device)
    torch.cuda.set_stream = torch.accelerator.set_stream
    torch.cuda.stream = lambda stream: stream if stream is not None else nullcontext()
    torch.cuda.is_current_stream_capturing = lambda: False

    import vllm.utils.torch_utils as torch_utils

    torch_utils.current_stream = torch.accelerator.current_stream


def _graphs() -> None:
    # compilation/cuda_graph.py, v1/worker/gpu_model_runner.py
    from gapless.serving import graphs

    torch.cuda.CUDAGraph = graphs.Graph
    torch.cuda.graph = graphs.capture
    torch.cuda.graph_pool_handle = graphs.PoolHandle


def _weak_references() -> None:
    # utils/torch_utils.py: an operator of CUDA; here works hold addresses, so that nothing else is
    # needed to let go of a tensor.
    import vllm.compilation.cuda_graph as cuda_graph

    cuda_graph.weak_ref_tensors = lambda tensors: tensors


# Where upstream compiles a helper (torch.compile at its first call, seconds in the first request).
COMPILED_HELPERS = (
    ("vllm.v1.sample.ops.logprobs", "batched_count_greater_than"),
    ("vllm.v1.sample.sampler", "batched_count_greater_than"),
    ("vllm.model_executor.layers.vocab_parallel_embedding", "get_masked_input_and_mask"),
    ("vllm.model_executor.layers.fused_moe.router.grouped_topk_router", "grouped_topk"),
)


def _compiled_helpers() -> None:
    for module_name, name in COMPILED_HELPERS:
        module = importlib.import_module(module_name)
        setattr(module, name, original(getattr(module, name)))


def original(compiled: Any) -> Any:
    """The function that torch.compile was given."""
    return getattr(compiled, "_torchdynamo_orig_callable", compiled)


def _grammar_masks() -> None:
    # v1/structured_output/utils.py: xgrammar compiles its kernel for devices that it does not know.
    import vllm.v1.structured_output.utils as structured_output

    from gapless.serving.grammar import GrammarLibrary

    structured_output.xgr = GrammarLibrary(structured_output.xgr)


def _kernel_warmup() -> None:
    # model_executor/warmup/kernel_warmup.py imports model code that needs CUDA.
    import vllm.v1.worker.gpu_worker as gpu_worker

    gpu_worker.kernel_warmup = lambda worker, **_: None


def _thread_count() -> None:
    # utils/torch_utils.py sets one thread for the process; the device's threads count as well.
    import vllm.v1.worker.gpu_worker as gpu_worker

    gpu_worker.set_torch_threads_for_runtime = lambda: None
