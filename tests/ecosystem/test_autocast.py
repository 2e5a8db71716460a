"""``torch.autocast("gapless")`` against ``torch.autocast("cpu")``: same dtypes, same bits."""

import pytest
import torch
from torch.nn import functional as F

DTYPES = [torch.bfloat16, torch.float16]


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def half_input(*shape: int) -> torch.Tensor:
    return numbers(*shape, seed=1, dtype=torch.float16)


# Lower precision, fp32 and promoting operators, and some that autocast leaves alone.
CASES = {
    "mm": lambda to: to(numbers(4, 5)) @ to(numbers(5, 6)),
    "mm mixed": lambda to: to(numbers(4, 5)) @ to(half_input(5, 6)),
    "bmm": lambda to: torch.bmm(to(numbers(2, 4, 5)), to(numbers(2, 5, 6))),
    "addmm": lambda to: torch.addmm(to(numbers(6)), to(numbers(4, 5)), to(numbers(5, 6))),
    "baddbmm": lambda to: torch.baddbmm(
        to(numbers(2, 4, 6)), to(numbers(2, 4, 5)), to(numbers(2, 5, 6))
    ),
    "linear": lambda to: F.linear(to(numbers(4, 5)), to(numbers(3, 5)), to(numbers(3))),
    "conv1d": lambda to: F.conv1d(to(numbers(2, 3, 9)), to(numbers(4, 3, 3))),
    "conv2d": lambda to: F.conv2d(to(numbers(2, 3, 9, 9)), to(numbers(4, 3, 3, 3))),
    "conv2d same": lambda to: F.conv2d(
        to(numbers(2, 3, 9, 9)), to(numbers(4, 3, 3, 3)), padding="same"
    ),
    "conv_transpose2d": lambda to: F.conv_transpose2d(
        to(numbers(2, 3, 5, 5)), to(numbers(3, 4, 3, 3))
    ),
    "prelu": lambda to: F.prelu(to(numbers(4, 5)), to(numbers(1))),
    "attention": lambda to: F.scaled_dot_product_attention(
        *(to(numbers(1, 2, 6, 8, seed=s)) for s in range(3))
    ),
    "matmul": lambda to: torch.matmul(to(numbers(3, 4, 5)), to(numbers(5))),
    "vecdot": lambda to: torch.linalg.vecdot(to(numbers(4, 5)), to(numbers(4, 5, seed=2))),
    "mse": lambda to: F.mse_loss(to(half_input(4, 5)), to(numbers(4, 5))),
    "cross entropy": lambda to: F.cross_entropy(to(half_input(4, 5)), to(torch.arange(4))),
    "nll": lambda to: F.nll_loss(to(half_input(4, 5)), to(torch.arange(4))),
    "l1": lambda to: F.l1_loss(to(half_input(4, 5)), to(half_input(4, 5) + 1)),
    "bce with logits": lambda to: F.binary_cross_entropy_with_logits(
        to(half_input(4, 5)), to(half_input(4, 5).sigmoid())
    ),
    "prod": lambda to: to(half_input(4, 5)).prod(),
    "prod dim": lambda to: to(half_input(4, 5)).prod(1),
    "trace": lambda to: torch.trace(to(half_input(4, 4))),
    "quantile": lambda to: torch.quantile(to(half_input(9)), 0.3),
    "cdist": lambda to: torch.cdist(to(half_input(4, 5)), to(half_input(3, 5))),
    "fft": lambda to: torch.fft.rfft(to(half_input(8))),
    "grid_sample": lambda to: F.grid_sample(
        to(half_input(1, 2, 4, 4)), to(half_input(1, 3, 3, 2)), align_corners=False
    ),
    "reflection pad": lambda to: F.pad(to(half_input(1, 2, 6)), (2, 2), mode="reflect"),
    "inverse": lambda to: torch.inverse(to(half_input(4, 4) + 4 * torch.eye(4).half())),
    "cat": lambda to: torch.cat([to(half_input(2, 3)), to(numbers(2, 3))]),
    "stack": lambda to: torch.stack([to(half_input(2, 3)), to(numbers(2, 3))]),
    "index_copy": lambda to: torch.index_copy(
        to(numbers(4, 3)), 0, to(torch.tensor([1, 3])), to(half_input(2, 3))
    ),
    "add": lambda to: to(numbers(4)) + to(half_input(4)),
    "softmax": lambda to: to(half_input(4, 5)).softmax(-1),
    "layer norm": lambda to: F.layer_norm(to(numbers(4, 5)), (5,)),
    "int mm": lambda to: to(torch.arange(4).view(2, 2)) @ to(torch.arange(4).view(2, 2)),
    "double mm": lambda to: to(numbers(4, 5).double()) @ to(numbers(5, 6).double()),
}


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.device.type == "gapless"
    assert got.dtype == expected.dtype
    got = got.cpu()
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_an_operator_casts_as_on_the_cpu(name, dtype, same_threads):
    def low(tensor: torch.Tensor) -> torch.Tensor:  # a region promotes its own dtype and fp32 only
        return tensor.to(dtype) if tensor.dtype == torch.float16 else tensor

    with torch.autocast("cpu", dtype=dtype):
        expected = CASES[name](low)
    with torch.autocast("gapless", dtype=dtype):
        got = CASES[name](lambda tensor: low(tensor).to("gapless"))
    assert_same_bits(got, expected)


def test_a_dtype_that_is_not_the_regions_cannot_be_promoted_as_on_the_cpu():
    for device in ("cpu", "gapless"):
        tensors = [half_input(2, 3).to(device), numbers(2, 3).to(device)]
        with (
            torch.autocast(device, dtype=torch.bfloat16),
            pytest.raises(RuntimeError, match="prioritize"),
        ):
            torch.cat(tensors)


def test_the_lists_are_the_cpus():
    """A torch whose CPU lists change must fail here rather than differ silently."""
    listed = torch._C._dispatch_get_registrations_for_dispatch_key
    assert set(listed("AutocastPrivateUse1")) == set(listed("AutocastCPU"))


def test_nested_and_disabled_regions():
    left, right = numbers(4, 4).to("gapless"), numbers(4, 4, seed=1).to("gapless")
    with torch.autocast("gapless", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("gapless")
        assert (left @ right).dtype == torch.bfloat16
        with torch.autocast("gapless", enabled=False):
            assert (left @ right).dtype == torch.float32
            with torch.autocast("gapless", dtype=torch.float16):
                assert (left @ right).dtype == torch.float16
        assert (left @ right).dtype == torch.bfloat16
        assert (left.cpu() @ right.cpu()).dtype == torch.float32  # another device's region
    assert not torch.is_autocast_enabled("gapless")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (left @ right).dtype == torch.float32


def test_a_dtype_that_cannot_be_is_told():
    with pytest.warns(UserWarning, match="not supported"), torch.autocast("gapless", torch.int8):
        assert not torch.is_autocast_enabled("gapless")


def step(device: str, cache: bool, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))
    model = model.to(device)
    inputs, target = numbers(5, 8).to(device), numbers(5, 3, seed=2).to(device)
    with torch.autocast(device, dtype=dtype, cache_enabled=cache):
        loss = F.mse_loss(model(inputs), target) + model(inputs).sum()  # the cast is used twice
    loss.backward()
    return loss.detach(), *(parameter.grad for parameter in model.parameters())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cache", [True, False])
def test_gradients_are_the_cpus(cache, dtype, same_threads):
    for got, expected in zip(step("gapless", cache, dtype), step("cpu", cache, dtype), strict=True):
        assert_same_bits(got, expected)


def test_casts_of_weights_are_cached_within_the_region():
    weight = torch.nn.Parameter(numbers(64, 64).to("gapless"))
    inputs = numbers(4, 64).to("gapless")

    def casts(cache: bool) -> int:
        recorder = torch.gapless.recorder
        recorder.start()
        recorder.drain()
        with torch.autocast("gapless", dtype=torch.bfloat16, cache_enabled=cache):
            for _ in range(5):
                F.linear(inputs, weight)
        torch.accelerator.synchronize()
        recorder.stop()
        batch = recorder.drain()
        names = [batch.names[i] for i in batch.columns[:, recorder.COLUMNS.index("name_id")]]
        return sum("copy" in name for name in names)

    assert casts(cache=False) - casts(cache=True) == 4


def test_custom_fwd_and_bwd():
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="gapless", cast_inputs=torch.float32)
        def forward(ctx, left, right):
            assert not torch.is_autocast_enabled("gapless")
            ctx.save_for_backward(left, right)
            return left @ right

        @staticmethod
        @torch.amp.custom_bwd(device_type="gapless")
        def backward(ctx, gradient):
            left, right = ctx.saved_tensors
            return gradient @ right.t(), left.t() @ gradient

    left = half_input(4, 4).to("gapless").requires_grad_()
    right = half_input(4, 4).to("gapless")
    with torch.autocast("gapless", dtype=torch.float16):
        result = Product.apply(left, right)
    assert result.dtype == torch.float32
    result.sum().backward()
    assert left.grad is not None
    assert torch.equal(result.cpu(), left.detach().cpu().float() @ right.cpu().float())


def scaled_training(device: str) -> tuple[list[float], list[torch.Tensor]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**15, growth_interval=2)
    scales = []
    for index in range(6):
        inputs = numbers(5, 8, seed=index).to(device)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = model(inputs).float().square().mean()
            if index == 3:
                loss = loss * float("inf")  # this step has to be left out
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, [parameter.detach() for parameter in model.parameters()]


def test_grad_scaler_trains_as_on_the_cpu(same_threads):
    scales, weights = scaled_training("gapless")
    expected_scales, expected = scaled_training("cpu")
    assert scales == expected_scales
    assert scales[3] < scales[2]
    for got, want in zip(weights, expected, strict=True):
        assert_same_bits(got, want)


def test_scaling_and_unscaling_do_not_make_the_host_wait():
    weight = torch.nn.Parameter(numbers(4, 4).to("gapless"))
    scaler = torch.amp.GradScaler("gapless")
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler.scale(weight.sum()).backward()
    torch.gapless.departures.reset()
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    assert not torch.gapless.departures.counts()
    scaler.step(optimizer)  # has to know whether to step, as on every device
    scaler.update()
