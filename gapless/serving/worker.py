"""vLLM's worker on the device."""

from __future__ import annotations

import gc
import os
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.utils.mem_utils import MemorySnapshot
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment

from gapless.device.parent_watch import end_with_parent
from gapless.profile import record
from gapless.serving import shims
from gapless.serving.cache_memory import GIB, LIMIT_VARIABLE, cache_bytes, require_a_block

if TYPE_CHECKING:
    from gapless.serving.model_runner import GaplessModelRunner

logger = init_logger(__name__)


class GaplessWorker(Worker):
    """One process's share of the model, on one device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        end_with_parent()
        shims.install()
        super().__init__(*args, **kwargs)
        self._recording: ExitStack | None = None
        self._cache_bytes = self._longest = 0

    def init_device(self) -> None:
        """Take the device, join the other workers, and make the model runner."""
        # What was imported stays: upstream collects garbage two dozen times on its way, and looking
        # through a million objects each time takes longer than all the rest of a start.
        gc.collect()
        gc.freeze()
        self.device = torch.device("gapless", self.local_rank)
        torch.accelerator.set_device_index(self.device)
        current_platform.check_if_supports_dtype(self.model_config.dtype)
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.local_rank,
            current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)
        torch.accelerator.empty_cache()
        self.init_snapshot = MemorySnapshot(device=self.device)
        self._init_workspace_and_model_runner()

    def determine_available_memory(self) -> int:
        """Bytes for the cache of keys and values.

        What ``--kv-cache-memory-bytes`` says; else, with ``--gpu-memory-utilization``, that share
        of the memory less what is taken; else a part of what is free. No step is run for it.

        Raises:
            ValueError: so much is not free, or it is too little for any request.
        """
        free_bytes, total_bytes = torch.accelerator.get_memory_info(self.device)
        if os.environ.get(LIMIT_VARIABLE):
            # The machine's free memory is less by the packed weights, that within a limit is not.
            free_bytes = max(0, free_bytes - self.model_runner.packed_bytes)
        available = cache_bytes(self.cache_config, free_bytes, total_bytes)
        layers = self.get_kv_cache_spec().values()
        block_bytes = sum(layer.page_size_bytes for layer in layers)
        require_a_block(available, block_bytes, self.cache_config.block_size)
        self._cache_bytes, self._longest = available, self.model_config.max_model_len
        return available

    def update_max_model_len(self, max_model_len: int) -> None:
        """Take the length that fits into the cache, and say that it is not the model's own."""
        logger.warning(
            "gapless: requests may have %d tokens instead of the model's %d, which is what a cache "
            "of %.2f GiB holds; --kv-cache-memory-bytes gives it more",
            max_model_len,
            self._longest,
            self._cache_bytes / GIB,
        )
        super().update_max_model_len(max_model_len)

    def _make_model_runner(self) -> GaplessModelRunner:
        from gapless.serving.model_runner import GaplessModelRunner

        return GaplessModelRunner(self.vllm_config, self.device)

    def profile(self, is_start: bool = True, profile_prefix: str | None = None, **_: Any) -> None:
        """Start or stop a recording of this process, for ``gapless view``.

        It is written to the folder that ``--profiler-config.torch_profiler_dir`` names.

        Raises:
            RuntimeError: profiling is not enabled.
        """
        folder = self.profiler_config.torch_profiler_dir if self.profiler_config else ""
        if not folder:
            raise RuntimeError(
                "profiling is not enabled; start the server with --profiler-config.profiler=torch "
                "--profiler-config.torch_profiler_dir=FOLDER"
            )
        if is_start and self._recording is None:
            self._recording = ExitStack()
            self._recording.enter_context(record(folder, trace=True))
        elif not is_start and self._recording is not None:
            recording, self._recording = self._recording, None
            recording.close()
            logger.info("gapless: recording written to %s (gapless view -d %s)", folder, folder)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[None]:
        return nullcontext()
