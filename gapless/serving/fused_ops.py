"""Fused kernels, gapless's and vLLM's for the CPU, in the place of sequences of operators."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from vllm import ir
from vllm.model_executor.layers import activation
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

from gapless.kernels.silu_and_mul import silu_and_mul

PROVIDER = "gapless"


def fused_norms_wanted() -> bool:
    """Whether RMS norms are one kernel (the default); GAPLESS_FUSED_NORMS=0 says no.

    Raises:
        ValueError: the variable is neither 0 nor 1.
    """
    value = os.environ.get("GAPLESS_FUSED_NORMS") or "1"
    if value not in ("0", "1"):
        raise ValueError(f"GAPLESS_FUSED_NORMS={value}: it is 0 or 1")
    return value == "1"


def _same_dtype(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return variance_size is None and weight is not None and weight.dtype == x.dtype != torch.float64


@ir.ops.rms_norm.register_impl(PROVIDER, supports_args=_same_dtype, supported=True)
def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """``x`` [..., hidden] divided by its root mean square, times ``weight``."""
    out = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    torch.ops.gapless.rms_norm(out, x.contiguous(), weight, epsilon)
    return out


def _same_dtype_of_sum(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    return _same_dtype(x, weight, epsilon, variance_size) and x_residual.dtype == x.dtype


@ir.ops.fused_add_rms_norm.register_impl(
    PROVIDER, supports_args=_same_dtype_of_sum, supported=True, inplace=True
)
def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The norm of ``x + x_residual``, and the sum; both are written in place."""
    if not x.is_contiguous() or not x_residual.is_contiguous():
        x, x_residual = x.contiguous(), x_residual.contiguous()
    torch.ops.gapless.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual


def _with_cpu_kernel(base: type[Any]) -> None:
    """Make layers of this class use the kernel that vLLM has for the CPU."""
    fused = type(f"Gapless{base.__name__}", (base,), {"forward_oot": base.forward_cpu})
    base.register_oot(fused, name=base.__name__)


activation.SiluAndMul.register_oot(
    type(
        "GaplessSiluAndMul",
        (activation.SiluAndMul,),
        {"forward_oot": lambda self, x: silu_and_mul(x)},
    ),
    name="SiluAndMul",
)
for _base in (
    activation.GELU,
    activation.GELUTanh,
    activation.GeluAndMul,
    activation.NewGELU,
    activation.FastGELU,
    activation.QuickGELU,
    RotaryEmbedding,
):
    _with_cpu_kernel(_base)
