"""How much memory the cache of keys and values gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config.cache import CacheConfig

GIB = 1 << 30
LIMIT_VARIABLE = "GAPLESS_MEMORY_LIMIT"
# Zeroing it is part of the start, and host memory is shared with everything else.
DEFAULT_BYTES = 4 * GIB
_FREE_SHARE = 0.5


def cache_bytes(config: CacheConfig, free_bytes: int, total_bytes: int) -> int:
    """Bytes for the cache, from what the user said and what is free after the model was loaded.

    Raises:
        ValueError: so much is not free.
    """
    if config.kv_cache_memory_bytes:
        wanted, said = config.kv_cache_memory_bytes, "--kv-cache-memory-bytes"
    elif config.gpu_memory_utilization != type(config).gpu_memory_utilization:
        taken = total_bytes - free_bytes
        wanted = int(total_bytes * config.gpu_memory_utilization) - taken
        said = f"--gpu-memory-utilization {config.gpu_memory_utilization}"
        if wanted <= 0:
            raise ValueError(
                f"{said} of {total_bytes / GIB:.2f} GiB leaves nothing for the cache: "
                f"{taken / GIB:.2f} GiB are taken already; raise it, or free memory"
            )
    else:
        return min(DEFAULT_BYTES, int(free_bytes * _FREE_SHARE))
    if wanted > free_bytes:
        raise ValueError(
            f"{said} asks for a cache of {wanted / GIB:.2f} GiB and the device has "
            f"{free_bytes / GIB:.2f} of {total_bytes / GIB:.2f} GiB free; lower it"
        )
    return int(wanted)


def require_a_block(available_bytes: int, block_bytes: int, block_tokens: int) -> None:
    """Check that the cache is not smaller than its smallest part, and the one that stays empty.

    Raises:
        ValueError: it is.
    """
    if available_bytes < 2 * block_bytes:
        raise ValueError(
            f"a cache of {available_bytes} bytes holds nothing: a block of {block_tokens} tokens "
            f"takes {block_bytes} bytes of this model's keys and values, and two are the least; "
            f"raise --kv-cache-memory-bytes, or {LIMIT_VARIABLE} if it is set, or free memory"
        )
