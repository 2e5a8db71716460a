"""vLLM's model runner on the device."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.logger import init_logger
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from gapless import _C
from gapless.device import recorder
from gapless.kernels.greedy_argmax import greedy_argmax
from gapless.profile import count_tokens, host_range
from gapless.serving.device_cores import small_kernels
from gapless.serving.linear_weights import form_wanted
from gapless.serving.metrics_page import engine_page
from gapless.serving.packed_linear import pack_linears
from gapless.serving.step_meter import StepMeter
from gapless.serving.step_output import StepOutput

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

logger = init_logger(__name__)

# Of the cache, whose pages a first request would have to wait for.
_FIRST_BLOCKS = 16


@contextmanager
def _without_collection() -> Iterator[None]:
    """What upstream captures graphs in.

    Its own thaws afterwards what was frozen before and looks through all that is imported, which
    takes longer than the captures.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class GaplessModelRunner(GPUModelRunner):
    """Upstream's runner; what it does is marked and counted."""

    _freeze_gc = staticmethod(_without_collection)

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self._page = engine_page()
        self._page.name(self.model_config.served_model_name or self.model_config.model, str(device))
        self._meter = StepMeter(self._page, device)
        self._step = -1
        self._tokens = 0
        self._departure_changes = -1
        self.packed_bytes = 0
        self.sampler.greedy_sample = greedy_argmax

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the weights, and bring those of linear layers into the kernels' own layout."""
        form = form_wanted(self.vllm_config.additional_config)
        if self.model_config.is_moe:
            import gapless.serving.experts  # noqa: F401
        super().load_model(*args, **kwargs)
        packed = pack_linears(self.get_model(), form)
        self.packed_bytes = packed.bytes
        self._page.set("packed_layers", packed.layers)
        self._page.set("unpacked_layers", len(packed.left))

    def initialize_kv_cache_tensors(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """Make the cache; its memory comes into being as it is used, but for the first blocks'."""
        caches: dict[str, torch.Tensor] = super().initialize_kv_cache_tensors(*args, **kwargs)
        for cache in caches.values():
            cache[:_FIRST_BLOCKS].zero_()
        return caches

    def execute_model(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        """Submit a step's forward pass."""
        if not scheduler_output.total_num_scheduled_tokens:
            return super().execute_model(scheduler_output, *args, **kwargs)
        if not scheduler_output.scheduled_cached_reqs.num_reqs:
            self._meter.idle()  # nobody waited for this step since the one before it
        self._step += 1
        recorder.set_step(self._step)
        self._meter.begin()
        self._tokens = scheduler_output.total_num_scheduled_tokens
        with host_range("submit", self._step), small_kernels(self._tokens):
            results = super().execute_model(scheduler_output, *args, **kwargs)
        if results is not None:  # a pooling model's: nothing is sampled
            self._page.add("steps_pooling")
            return self._submitted(results)
        recorder.set_step(-1)
        return None

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """Submit the sampling of the step's tokens."""
        if self.execute_model_state is None:
            return super().sample_tokens(*args, **kwargs)
        recorder.set_step(self._step)
        with host_range("submit", self._step):
            results = super().sample_tokens(*args, **kwargs)
        return self._submitted(results)

    def _submitted(self, results: Any) -> Any:
        self._meter.end()
        recorder.set_step(-1)
        self._page.add("tokens", self._tokens)
        if (changes := _C.departure_changes()) != self._departure_changes:
            self._departure_changes = changes
            self._page.set("departures", sum(entry[2] for entry in _C.departures()))
        if isinstance(results, AsyncModelRunnerOutput):
            return StepOutput(results, self._step, self._meter.read)
        self._page.count_wait("synchronous_scheduling")
        self._meter.read()
        return results

    def _prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        with host_range("prepare", self._step):
            return super()._prepare_inputs(*args, **kwargs)

    def _determine_batch_execution_and_padding(self, *args: Any, **kwargs: Any) -> Any:
        chosen = super()._determine_batch_execution_and_padding(*args, **kwargs)
        mode, batch = chosen[0], chosen[1]
        if self._meter.has_begun and not self.is_pooling_model:
            self._count(mode, batch, kwargs)
        return chosen

    def _count(self, mode: CUDAGraphMode, batch: Any, batch_of: dict[str, Any]) -> None:
        if mode == CUDAGraphMode.FULL:
            self._page.add("steps_decode_graph")
            self._page.add("graph_replays")
        elif batch_of["max_num_scheduled_tokens"] == 1:
            self._page.add("steps_decode_eager")
        else:
            self._page.add("steps_mixed")
        self._page.add("padded_tokens", batch.num_tokens - batch_of["num_tokens"])

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        if batch.sampled_token_ids_cpu is not None and batch.sampling_metadata.output_token_ids:
            self._page.count_wait("earlier_tokens")
        results = super()._sample(*args, **kwargs)
        count_tokens(batch.num_reqs)
        return results

    def _get_prompt_logprobs_dict(self, *args: Any, **kwargs: Any) -> Any:
        if self.num_prompt_logprobs:
            self._page.count_wait("prompt_logprobs")
        return super()._get_prompt_logprobs_dict(*args, **kwargs)
