"""What the cache of keys and values may take."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.config.cache import CacheConfig

from gapless.serving.cache_memory import DEFAULT_BYTES, GIB, LIMIT_VARIABLE, cache_bytes
from gapless.serving.worker import GaplessWorker

BLOCK_BYTES = 1 << 20


def _worker(packed_bytes, config=None):
    layers = {"attention": SimpleNamespace(page_size_bytes=BLOCK_BYTES)}
    return SimpleNamespace(
        device=torch.device("gapless", 0),
        cache_config=config or CacheConfig(),
        model_config=SimpleNamespace(max_model_len=2048),
        model_runner=SimpleNamespace(packed_bytes=packed_bytes),
        get_kv_cache_spec=lambda: layers,
    )


@pytest.fixture
def free(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda _: (3 * GIB, 4 * GIB))


@pytest.mark.parametrize(("limit", "expected"), [(None, 1.5), ("4G", 1.0)])
def test_packed_weights_count_within_a_limit(free, monkeypatch, limit, expected):
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)
    if limit is not None:
        monkeypatch.setenv(LIMIT_VARIABLE, limit)
    assert GaplessWorker.determine_available_memory(_worker(GIB)) == expected * GIB


def test_a_limit_that_the_weights_fill_is_told(free, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "4G")
    with pytest.raises(ValueError, match=f"a cache of 0 bytes holds nothing.*{LIMIT_VARIABLE}"):
        GaplessWorker.determine_available_memory(_worker(4 * GIB))


def test_what_is_asked_for_must_be_free(free, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "4G")
    config = CacheConfig(kv_cache_memory_bytes=int(2.5 * GIB))
    with pytest.raises(ValueError, match=r"asks for a cache of 2\.50 GiB and the device has 2\.00"):
        GaplessWorker.determine_available_memory(_worker(GIB, config))


@pytest.mark.parametrize(
    ("options", "free_gib", "expected"),
    [
        ({}, 2, 1 * GIB),
        ({}, 100, DEFAULT_BYTES),
        ({"kv_cache_memory_bytes": 7 * GIB}, 8, 7 * GIB),
        ({"gpu_memory_utilization": 0.5}, 8, 3 * GIB),  # of 10, of which 2 are taken
    ],
)
def test_sizes(options, free_gib, expected):
    total = max(10, free_gib) * GIB
    assert cache_bytes(CacheConfig(**options), free_gib * GIB, total) == expected


def test_a_share_that_is_taken_already_is_refused():
    with pytest.raises(ValueError, match="leaves nothing for the cache"):
        cache_bytes(CacheConfig(gpu_memory_utilization=0.1), 8 * GIB, 10 * GIB)
