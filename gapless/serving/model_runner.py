"""vLLM's model runner on the device."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from gapless.serving.packed_linear import pack_linears

logger = init_logger(__name__)


class GaplessModelRunner(GPUModelRunner):
    """Upstream's runner; the device's streams, events and graphs do the rest."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the weights, and bring those of linear layers into the kernels' own layout."""
        super().load_model(*args, **kwargs)
        pack_linears(self.get_model())
