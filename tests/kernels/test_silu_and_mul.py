import pytest
import torch

from gapless.kernels.silu_and_mul import silu_and_mul


def exact(x):
    gate, other = x.double().chunk(2, -1)
    return torch.nn.functional.silu(gate) * other


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(1, 2), (3, 14), (1, 3072), (33, 3072), (2, 5, 16), (0, 16)])
def test_as_the_two_operators_exactly(dtype, shape):
    torch.manual_seed(0)
    x = (torch.randn(shape) * 8).to(dtype)
    found = silu_and_mul(x.to("gapless")).cpu()
    assert found.dtype == dtype
    torch.testing.assert_close(found, exact(x).to(dtype))


def test_extremes():
    gates = [0.0, -0.0, 1e-30, 89.0, 500.0, -89.0, -500.0, float("inf"), float("-inf")]
    x = torch.tensor([gates + [float("nan")] * 3 + [2.0] * 12])
    found = silu_and_mul(x.to("gapless")).cpu()
    torch.testing.assert_close(found.double(), exact(x), equal_nan=True, rtol=2e-6, atol=1e-30)


def test_what_is_not_contiguous():
    x = torch.randn(64, 6).to("gapless").t()
    torch.testing.assert_close(silu_and_mul(x).cpu(), exact(x.cpu()).float())


def test_a_row_does_not_depend_on_the_rows_beside_it():
    x = torch.randn(40, 3072).to("gapless")
    together = silu_and_mul(x)
    for count in (1, 2, 5, 39):
        assert torch.equal(silu_and_mul(x[:count]), together[:count])
