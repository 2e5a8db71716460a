"""A spread of operators, forward and backward; ``make conformance`` checks all of them."""

import pytest
import torch

from .catalogue import dtypes_of, operators
from .checks import check_operator

OPERATORS = [
    "add",
    "addmm",
    "amax",
    "argmax",
    "as_strided",
    "baddbmm",
    "bmm",
    "cat",
    "clamp",
    "complex",
    "cumsum",
    "diagonal",
    "div.floor_rounding",
    "einsum",
    "erf",
    "exp",
    "expand",
    "fft.rfft",
    "flip",
    "gather",
    "index_put",
    "index_select",
    "kthvalue",
    "linalg.cholesky",
    "linalg.inv",
    "linalg.norm",
    "linalg.svd",
    "logsumexp",
    "masked_fill",
    "masked_select",
    "matmul",
    "max.binary",
    "mean",
    "mm",
    "mul",
    "nonzero",
    "prod",
    "repeat_interleave",
    "roll",
    "scatter_add",
    "select_scatter",
    "sort",
    "split",
    "std",
    "sum",
    "take",
    "topk",
    "tril",
    "unfold",
    "unique",
    "var",
    "where",
    "nn.functional.avg_pool2d",
    "nn.functional.batch_norm",
    "nn.functional.conv2d",
    "nn.functional.cross_entropy",
    "nn.functional.embedding",
    "nn.functional.gelu",
    "nn.functional.grid_sample",
    "nn.functional.group_norm",
    "nn.functional.interpolate.bilinear",
    "nn.functional.layer_norm",
    "nn.functional.linear",
    "nn.functional.max_pool2d",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.softmin",
]
DTYPES = (torch.float32, torch.int64)
CHECKS = frozenset({"forward", "grad"})


@pytest.fixture(autouse=True)
def _same_threads():
    """CPU kernels split some sums by thread; the reference has to use as many as the device."""
    before = torch.get_num_threads()
    torch.set_num_threads(torch.gapless.get_device_properties().cores)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", OPERATORS)
def test_same_as_cpu(name):
    op = operators()[name]
    tried = 0
    for dtype in dtypes_of(op, DTYPES):
        for outcome in check_operator(op, dtype, limit=4, only=CHECKS):
            assert outcome.failures == [], f"{outcome.check} {outcome.dtype}"
            tried += outcome.tried
    assert tried > 0
