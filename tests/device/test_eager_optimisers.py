"""Optimisers, in their three forms, against the CPU, bit for bit."""

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("same_threads")

OPTIMISERS = {
    "Adam": (torch.optim.Adam, {}),
    "AdamW": (torch.optim.AdamW, {}),
    "SGD": (torch.optim.SGD, {}),
    "SGD with momentum": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "Adagrad": (torch.optim.Adagrad, {}),
}


@pytest.mark.parametrize("form", ["foreach", "fused", "plain"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_same_as_cpu(name, form):
    def trained(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
        optimiser, settings = OPTIMISERS[name]
        settings = {**settings, "foreach": form == "foreach"}
        if form == "fused":
            settings = {**settings, "foreach": None, "fused": True}
        steps = optimiser(model.parameters(), lr=0.01, **settings)
        x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device)
        for _ in range(3):
            steps.zero_grad()
            model(x).square().sum().backward()
            steps.step()
        return [parameter.detach() for parameter in model.parameters()]

    expected = trained("cpu")
    torch.gapless.departures.reset()
    actual = trained("gapless")
    waited = [d for d in torch.gapless.departures.counts() if not d.operation.startswith("copy")]
    assert waited == []
    for mine, theirs in zip(actual, expected, strict=True):
        assert torch.equal(mine.cpu(), theirs)
