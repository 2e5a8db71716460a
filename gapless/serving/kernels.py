"""Makes operators of vLLM's CPU library asynchronous on the device.

An operator that is registered as a composite outranks a device's fallback: called with tensors of
the device, it would run at once, on the host's thread. Each one that is used is therefore named.
"""

from gapless import _C

_COMPOSITES = (
    "compute_slot_mapping_kernel_impl",
    "cpu_attn_reshape_and_cache",
    "cpu_attention_with_kv_cache",
    "eagle_prepare_inputs_padded_kernel_impl",
    "eagle_prepare_next_token_padded_kernel_impl",
    "eagle_step_slot_mapping_metadata_kernel_impl",
    "expand_kernel_impl",
    "rejection_greedy_sample_kernel_impl",
    "rejection_random_sample_kernel_impl",
    "sample_recovered_tokens_kernel_impl",
)


def queue_kernels() -> None:
    """Queue the calls of vLLM's composite operators, like every other operator's.

    Raises:
        RuntimeError: vLLM's CPU library does not have one of them, or is not loaded.
    """
    for name in _COMPOSITES:
        _C.queue_operator(f"_C::{name}")
