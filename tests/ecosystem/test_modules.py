"""Modules that move to the device change in place, as on other devices."""

import pytest
import torch


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, 4)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


@pytest.mark.parametrize("move", [lambda m: m.to("gapless"), lambda m: m.gapless()])
def test_tied_weights_stay_tied(move):
    model = Tied()
    expected = model.embed.weight.detach().clone()
    weight = model.embed.weight
    move(model)
    assert model.head.weight is model.embed.weight is weight
    assert weight.is_gapless
    assert len(list(model.parameters())) == 1
    model.half().float().to("cpu")
    assert model.head.weight is weight
    assert weight.device.type == "cpu"
    assert torch.equal(weight.detach(), expected.half().float())


def trained(device: str, move_after: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Tied()
    if not move_after:
        model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    tokens = torch.arange(7)
    model(tokens.to(model.head.weight.device)).sum().backward()  # gradients move along
    model.to(device)
    for _ in range(3):
        model(tokens.to(device)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize("move_after", [True, False])
def test_an_optimizer_made_before_the_move_trains_the_module(move_after, same_threads):
    for got, expected in zip(trained("gapless", move_after), trained("cpu", False), strict=True):
        assert torch.equal(got, expected)


def test_data_can_be_replaced_across_devices():
    parameter = torch.nn.Parameter(torch.arange(3.0))
    alias = parameter
    parameter.data = parameter.data.to("gapless") + 1
    assert alias.is_gapless
    (alias * 2).sum().backward()
    assert alias.grad is not None
    assert alias.grad.is_gapless
    assert alias.tolist() == [1.0, 2.0, 3.0]
    sparse = torch.eye(2).to_sparse()
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        parameter.data = sparse


def test_from_meta_to_the_device():
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    model.to_empty(device="gapless")
    torch.nn.init.ones_(model.weight)
    assert model.weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    with torch.device("gapless"):
        assert torch.nn.Linear(2, 2).weight.is_gapless
