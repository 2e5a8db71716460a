"""Results are laid out in memory as on the CPU, which decides what the next kernel rounds to."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = pytest.mark.usefixtures("same_threads")

FORMATS = [torch.contiguous_format, torch.channels_last]
X = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1))
W = torch.randn(3, 3, 2, 2, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("input_format", FORMATS)
@pytest.mark.parametrize("convolve", [F.conv2d, F.conv_transpose2d])
def test_convolutions(convolve, input_format, weight_format, dtype):
    def run(device: str) -> list[torch.Tensor]:
        x = X.to(device, dtype).contiguous(memory_format=input_format).detach()
        w = W.to(device, dtype).contiguous(memory_format=weight_format).detach()
        x.requires_grad_(), w.requires_grad_()
        y = convolve(x, w)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), (x, w))]

    for mine, theirs in zip(run("gapless"), run("cpu"), strict=True):
        assert mine.stride() == theirs.stride()
        assert torch.equal(mine.cpu(), theirs)


def test_training_in_channels_last():
    def gradients(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        model = model.to(device).to(memory_format=torch.channels_last)
        x = X.to(device).contiguous(memory_format=torch.channels_last)
        model(x).square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    for mine, theirs in zip(gradients("gapless"), gradients("cpu"), strict=True):
        assert torch.equal(mine.cpu(), theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_normalisation_in_reduced_precision(norm, dtype):
    """The CPU keeps their statistics in the input's dtype, unlike the shape functions."""

    def gradients(device: str) -> list[torch.Tensor]:
        layer = norm(4).to(device, dtype)
        x = X[0, 0, :, :4].to(device, dtype).detach().requires_grad_()
        layer(x).square().sum().backward()
        return [x.grad, *(parameter.grad for parameter in layer.parameters())]

    for mine, theirs in zip(gradients("gapless"), gradients("cpu"), strict=True):
        assert torch.equal(mine.cpu(), theirs)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.transpose(0, 1),
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.permute(3, 1, 0, 2),
    ],
    ids=["transposed", "channels last", "permuted"],
)
@pytest.mark.parametrize(
    "name",
    ["abs", "angle", "exp", "floor_divide", "isinf", "logical_and", "logical_not", "logical_xor"],
)
def test_elementwise_results_are_laid_out_as_their_inputs(name, make):
    function = getattr(torch, name)
    operands = 2 if name in ("floor_divide", "logical_and", "logical_xor") else 1

    def run(device: str) -> list[torch.Tensor]:
        x = make(X.to(device))
        result = function(*[x] * operands)
        if name in ("isinf", "exp"):  # no out=; and one of those whose wrapper lays out
            return [result]
        out = torch.empty(0, dtype=result.dtype, device=device)
        return [result, function(*[x] * operands, out=out)]

    for mine, theirs in zip(run("gapless"), run("cpu"), strict=True):
        assert mine.stride() == theirs.stride()
        assert torch.equal(mine.cpu(), theirs)
