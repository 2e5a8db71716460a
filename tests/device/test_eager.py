"""Eager operators against the same ones on torch's CPU device, bit for bit."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = pytest.mark.usefixtures("same_threads")

A = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
B = torch.randn(7, 3, generator=torch.Generator().manual_seed(2))
I = torch.tensor([[3, 1], [0, 4]])  # noqa: E741


def a(device: str) -> torch.Tensor:
    return A.to(device, copy=True)


def b(device: str) -> torch.Tensor:
    return B.to(device, copy=True)


def i(device: str) -> torch.Tensor:
    return I.to(device, copy=True)


CASES = {
    "add": lambda d: a(d) + 2.5,
    "add of a host scalar tensor": lambda d: a(d) + torch.tensor(2.5),
    "broadcast": lambda d: a(d) * a(d)[:, :1],
    "integer and float": lambda d: i(d) / 2,
    "mm": lambda d: a(d) @ b(d),
    "mm of a transpose": lambda d: b(d).t() @ a(d).t(),
    "in place on a view": lambda d: a(d)[1:, ::2].mul_(3).add_(1),
    "out of the right size": lambda d: torch.add(a(d), 1, out=torch.empty(5, 7, device=d)),
    "out without a size": lambda d: torch.mm(a(d), b(d), out=torch.empty(0, device=d)),
    "sum": lambda d: a(d).sum(1),
    "argmax": lambda d: a(d).argmax(-1),
    "softmax": lambda d: a(d).softmax(-1),
    "topk": lambda d: torch.cat([t.float() for t in a(d).topk(3)]),
    "sort": lambda d: a(d).sort(dim=0).values,
    "cumsum": lambda d: a(d).cumsum(0),
    "cat": lambda d: torch.cat([a(d), a(d) * 2], 1),
    "stack": lambda d: torch.stack([a(d), a(d)]),
    "index": lambda d: a(d)[i(d)],
    "index by a host tensor": lambda d: a(d)[I],
    "boolean mask": lambda d: a(d)[a(d) > 0],
    "nonzero": lambda d: (a(d) > 0).nonzero(),
    "index_put": lambda d: a(d).index_put_((i(d),), torch.tensor(9.0, device=d)),
    "index_copy": lambda d: a(d).index_copy_(
        1, torch.tensor([2], device=d), torch.ones(5, 1, device=d)
    ),
    "where": lambda d: torch.where(a(d) > 0, a(d), 0.0),
    "masked_fill": lambda d: a(d).masked_fill(a(d) > 0, -1.0),
    "gather": lambda d: a(d).gather(1, torch.zeros(5, 1, dtype=torch.long, device=d)),
    "embedding": lambda d: F.embedding(i(d), a(d)),
    "layer_norm": lambda d: F.layer_norm(a(d), (7,)),
    "rms_norm": lambda d: F.rms_norm(a(d), (7,)),
    "batch_norm, evaluation": lambda d: F.batch_norm(
        a(d), torch.zeros(7, device=d), torch.ones(7, device=d)
    ),
    "batch_norm, training": lambda d: F.batch_norm(
        a(d), torch.zeros(7, device=d), torch.ones(7, device=d), training=True
    ),
    "embedding_bag": lambda d: F.embedding_bag(i(d), a(d), mode="sum"),
    "gelu": lambda d: F.gelu(a(d)),
    "silu": lambda d: F.silu(a(d)),
    "linear": lambda d: F.linear(a(d), b(d).t().contiguous(), torch.ones(3, device=d)),
    "conv2d": lambda d: F.conv2d(a(d).view(1, 1, 5, 7), b(d).view(1, 1, 7, 3)[:, :, :3]),
    "attention": lambda d: F.scaled_dot_product_attention(*(a(d).view(1, 1, 5, 7),) * 3),
    "attention with a mask": lambda d: F.scaled_dot_product_attention(
        *(a(d).view(1, 1, 5, 7),) * 3, attn_mask=torch.ones(5, 5, device=d).tril().bool()
    ),
    "attention, causal": lambda d: F.scaled_dot_product_attention(
        *(a(d).view(1, 1, 5, 7),) * 3, is_causal=True
    ),
    "arange": lambda d: torch.arange(2, 20, 3, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 11, device=d),
    "full": lambda d: torch.full((2, 2), 7, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "to bfloat16": lambda d: a(d).to(torch.bfloat16),
    "to bfloat16 at the move": lambda d: A.to(d, torch.bfloat16),
    "complex": lambda d: torch.view_as_complex(a(d)[:4, :2].contiguous()).conj() * 2j,
    "permute, contiguous": lambda d: a(d).view(5, 7, 1).permute(2, 0, 1).contiguous(),
    "unfold": lambda d: a(d).unfold(1, 3, 2),
    "expand": lambda d: a(d)[:, :1].expand(5, 4) + 1,
    "flip": lambda d: a(d).flip(0),
    "zero size": lambda d: a(d)[:0] + 1,
    "zero dim": lambda d: a(d)[0, 0] * 2,
    "resize_": lambda d: a(d).clone().resize_(3, 3),
    "foreach": lambda d: torch.stack(torch._foreach_add([a(d), a(d)], 1.0)),
    "einsum": lambda d: torch.einsum("ij,jk->ik", a(d), b(d)),
    "bucketize": lambda d: torch.bucketize(a(d), torch.tensor([-1.0, 0.0, 1.0], device=d)),
    "equal": lambda d: torch.tensor(torch.equal(a(d), a(d))),
}


@pytest.mark.parametrize("name", CASES)
def test_same_as_cpu(name):
    expected = CASES[name]("cpu")
    actual = CASES[name]("gapless")
    assert actual.device.type == "gapless" or name == "equal"
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    assert torch.equal(actual.cpu().resolve_conj(), expected.resolve_conj())


def test_views_share_memory():
    base = torch.zeros(4, 4, device="gapless")
    base.view(2, 8)[0].add_(1)
    base.t()[3].mul_(2)
    assert base.sum().item() == 8 + 2


def test_training_step_same_as_cpu():
    def losses(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
        model.to(device)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
        out = []
        for _ in range(5):
            loss = F.mse_loss(model(A.to(device)), torch.ones(5, 3, device=device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            out.append(loss.detach().cpu())
        return [*out, *(p.detach().cpu() for p in model.parameters())]

    for expected, actual in zip(losses("cpu"), losses("gapless"), strict=True):
        assert torch.equal(expected, actual)


def test_tensors_on_two_devices_are_refused_on_the_host():
    with pytest.raises(RuntimeError, match=r"on the same device.*gapless:0 and cpu"):
        torch.ones(3, device="gapless") + torch.ones(3)
    with pytest.raises(RuntimeError, match=r"on the same device.*gapless:0 and cpu"):
        torch.ones(3, device="gapless").copy_(torch.ones(3)).lerp_(torch.ones(3), 0.5)


def test_shape_errors_are_raised_on_the_host():
    with pytest.raises(RuntimeError, match="size of tensor a"):
        torch.ones(3, device="gapless") + torch.ones(4, device="gapless")
    torch.accelerator.synchronize()


def test_host_memory_may_change_after_submission():
    block = torch.randn(400, 400, device="gapless")
    source = torch.arange(16.0)
    for _ in range(5):
        block = block @ block  # keeps the device busy
    moved = source.to("gapless", non_blocking=True)
    summed = torch.ones(16, device="gapless") * torch.tensor(2.0)
    source.zero_()
    assert torch.equal(moved.cpu(), torch.arange(16.0))
    assert summed.sum().item() == 32


def test_departures_are_counted_with_their_reason():
    torch.gapless.departures.reset()
    tensor = torch.ones(4, device="gapless")
    (tensor * 2).softmax(0)
    assert torch.gapless.departures.counts() == ()
    tensor.nonzero()
    tensor[0].item()
    counted = {d.operation: (d.reason, d.count) for d in torch.gapless.departures.counts()}
    assert counted["aten::nonzero"] == ("its result's shape or value depends on data", 1)
    assert counted["aten::_local_scalar_dense"] == ("the host reads a value", 1)
