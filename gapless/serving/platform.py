"""What vLLM asks about the device, and the defaults that suit it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from vllm.logger import init_logger
from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

from gapless.serving import known_warnings
from gapless.serving.device_cores import share_cores
from gapless.serving.metrics import export_metrics
from gapless.serving.versions import require_supported_vllm

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.kernel import IrOpPriorityConfig
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

logger = init_logger(__name__)

require_supported_vllm()
known_warnings.leave_out()
share_cores()

BLOCK_TOKENS = 128
# A graph for each; a batch between two of them is padded to the larger one.
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class GaplessPlatform(Platform):
    """``torch.device("gapless")`` as vLLM sees it."""

    _enum = PlatformEnum.OOT
    device_name = "gapless"
    device_type = "gapless"
    dispatch_key = "PrivateUse1"
    ray_device_key = "gapless"
    dist_backend = "gapless"
    device_control_env_var = "GAPLESS_VISIBLE_DEVICES"
    # Helpers that upstream compiles at their first call run as they are written.
    simple_compile_backend = "eager"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """What models may be loaded as; the first is the default where a model's own is none."""
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def import_kernels(cls) -> None:
        """Load vLLM's CPU kernels, which the device's threads run."""
        CpuPlatform.import_kernels()
        from gapless.serving.kernels import queue_kernels

        queue_kernels()

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Make the fused kernels known that ``get_default_ir_op_priority`` names."""
        import vllm.kernels  # noqa: F401

        from gapless.serving import fused_ops  # noqa: F401

    @classmethod
    def get_default_ir_op_priority(cls, vllm_config: VllmConfig) -> IrOpPriorityConfig:
        """Which implementation of vLLM's operators comes first."""
        from vllm.config.kernel import IrOpPriorityConfig

        from gapless.serving.fused_ops import PROVIDER, fused_norms_wanted

        norms = [PROVIDER, "native"] if fused_norms_wanted() else ["native"]
        return IrOpPriorityConfig.with_default(
            ["native"], rms_norm=norms, fused_add_rms_norm=list(norms)
        )

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        """Put C++ in the place of the kernels that vLLM wrote in Triton."""
        CpuPlatform.register_triton_kernel_overrides()

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """The device's name."""
        return "gapless"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes of memory that the device has."""
        return int(torch.accelerator.get_memory_info(device_id)[1])

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability | None:
        """None: the number belongs to another vendor."""
        return None

    @classmethod
    def get_current_memory_usage(cls, device: torch.types.Device | None = None) -> float:
        """Peak bytes allocated since the last call."""
        torch.accelerator.reset_peak_memory_stats(device)
        return float(torch.accelerator.max_memory_allocated(device))

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Make it the current device."""
        torch.accelerator.set_device_index(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed every device's generator."""
        torch.gapless.manual_seed_all(seed)  # type: ignore[attr-defined]

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        """The threads that a kernel uses."""
        return torch.get_num_threads()

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """Refuse what no kernel computes in."""
        if dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise ValueError(f"--dtype {dtype}: gapless serves in bfloat16, float16 and float32")

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """No: copies from the host take what it holds at the call."""
        return False

    @classmethod
    def opaque_attention_op(cls) -> bool:
        """Attention is one operator, for graphs and compilers."""
        return True

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Yes: layers with and without windows have pages of their own."""
        return True

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """Yes: a decode step is a replayed graph."""
        return True

    @classmethod
    def get_static_graph_wrapper_cls(cls) -> str:
        """vLLM's own wrapper; it works with every device that has graphs."""
        return "vllm.compilation.cuda_graph.CUDAGraphWrapper"

    @classmethod
    def graph_pool_handle(cls) -> Any:
        """Memory for graphs to share."""
        from gapless.serving.graphs import PoolHandle

        return PoolHandle()

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Collectives of ``torch.distributed``."""
        return (
            "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"
        )

    @classmethod
    def get_punica_wrapper(cls) -> str:
        """LoRA's matrices."""
        return "gapless.serving.lora.GaplessPunicaWrapper"

    @classmethod
    def inference_mode(cls) -> Any:
        """How models are run."""
        return torch.no_grad()

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: AttentionBackendEnum,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,
    ) -> str:
        """The attention of this package.

        Raises:
            NotImplementedError: the model's kind of attention is not among what it computes.
        """
        for kind in ("use_mla", "use_sparse"):
            if getattr(attn_selector_config, kind, False):
                raise NotImplementedError(
                    f"gapless has no attention with {kind.removeprefix('use_')}; models that need "
                    "it are not served"
                )
        return "gapless.serving.attention.GaplessAttentionBackend"

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: VllmConfig) -> None:
        """Nothing to do: check_and_update_config has chosen it."""

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        """Choose graphs before vLLM derives their sizes from the mode."""
        from vllm.config import CompilationMode, CUDAGraphMode

        compilation = vllm_config.compilation_config
        compilation.mode = CompilationMode.NONE
        eager = vllm_config.model_config is not None and vllm_config.model_config.enforce_eager
        if vllm_config.parallel_config.world_size > 1 and not eager:
            logger.warning(
                "gapless: with %d workers decode steps run operator by operator, since what "
                "workers exchange is not captured in graphs",
                vllm_config.parallel_config.world_size,
            )
            eager = True
        compilation.cudagraph_mode = CUDAGraphMode.NONE if eager else CUDAGraphMode.FULL_DECODE_ONLY
        if compilation.cudagraph_capture_sizes is None and not eager:
            most = vllm_config.scheduler_config.max_num_seqs
            sizes = [size for size in BUCKETS if size < most] + [min(most, BUCKETS[-1])]
            compilation.cudagraph_capture_sizes = sizes

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Set what has no other choice, and refuse what cannot work."""
        # A graph is recorded from works that are queued; running them first would only take time.
        vllm_config.compilation_config.cudagraph_num_of_warmups = 0
        # The second generation of model runners needs Triton.
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "gapless.serving.worker.GaplessWorker"
        if vllm_config.shutdown_timeout == 0:
            # Killed at once, an engine does not write what it recorded, nor end its requests.
            vllm_config.shutdown_timeout = 5
        scheduler = vllm_config.scheduler_config
        if scheduler.scheduler_cls is None:
            from gapless.serving.scheduler import ASYNC_SCHEDULER, SYNC_SCHEDULER

            scheduler.scheduler_cls = (
                ASYNC_SCHEDULER if scheduler.async_scheduling else SYNC_SCHEDULER
            )
        export_metrics()
        cache = vllm_config.cache_config
        if cache is not None and not cache.user_specified_block_size:
            cache.block_size = BLOCK_TOKENS
