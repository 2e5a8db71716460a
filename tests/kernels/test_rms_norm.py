import pytest
import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
EPSILON = 1e-5


def exact(x, weight):
    x = x.double()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * weight.double()


def operands(shape, dtype):
    torch.manual_seed(0)
    return (torch.randn(shape) * 3).to(dtype), torch.randn(shape[-1]).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 576), (33, 576), (3, 7), (2, 5, 64), (0, 64), (300, 130)])
def test_as_the_formula(dtype, shape):
    x, weight = operands(shape, dtype)
    out = torch.empty(shape, dtype=dtype, device="gapless")
    torch.ops.gapless.rms_norm(out, x.to("gapless"), weight.to("gapless"), EPSILON)
    torch.testing.assert_close(out.cpu(), exact(x, weight).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 576), (33, 576), (3, 7), (300, 130)])
def test_of_a_sum_which_the_residual_takes(dtype, shape):
    x, weight = operands(shape, dtype)
    residual = (torch.randn(shape) * 5).to(dtype)
    on_device, taken = x.to("gapless"), residual.to("gapless")
    torch.ops.gapless.fused_add_rms_norm(on_device, taken, weight.to("gapless"), EPSILON)
    total = x.float() + residual.float()
    assert torch.equal(taken.cpu(), total.to(dtype))
    torch.testing.assert_close(on_device.cpu(), exact(total, weight).to(dtype))


def test_bfloat16_is_rounded_not_cut_off():
    x, weight = operands((64, 576), torch.bfloat16)
    out = torch.empty_like(x, device="gapless")
    torch.ops.gapless.rms_norm(out, x.to("gapless"), weight.to("gapless"), EPSILON)
    right = exact(x, weight)
    assert (out.cpu() == right.bfloat16()).double().mean() > 0.999
    # Cut off, numbers are too small by half of their last place on the average.
    off = (out.cpu().double().abs() - right.abs()).mean() / right.abs().mean()
    assert abs(off) < 1e-4


def test_a_row_does_not_depend_on_the_rows_beside_it():
    x, weight = operands((40, 576), torch.float32)
    x, weight = x.to("gapless"), weight.to("gapless")
    together = torch.empty_like(x)
    torch.ops.gapless.rms_norm(together, x, weight, EPSILON)
    for count in (1, 5, 39):
        alone = torch.empty_like(x[:count])
        torch.ops.gapless.rms_norm(alone, x[:count].contiguous(), weight, EPSILON)
        assert torch.equal(alone, together[:count])


def test_what_does_not_fit_is_refused():
    def norm():
        x = torch.ones(2, 8, device="gapless")
        torch.ops.gapless.rms_norm(x, x, torch.ones(4, device="gapless"), EPSILON)
        torch.accelerator.synchronize()

    with pytest.raises(RuntimeError, match=r"rms_norm: .* do not fit"):
        norm()
