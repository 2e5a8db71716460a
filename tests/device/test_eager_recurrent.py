"""Recurrent layers give the CPU's numbers, forward and backward, without waiting."""

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("same_threads")

X = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(1))
LAYERS = {
    "lstm": lambda: nn.LSTM(5, 4, 2),
    "lstm, both directions, no bias": lambda: nn.LSTM(5, 4, bidirectional=True, bias=False),
    "lstm, batch first": lambda: nn.LSTM(5, 4, batch_first=True),
    "lstm, float64": lambda: nn.LSTM(5, 4, 2).double(),
    "lstm, bfloat16": lambda: nn.LSTM(5, 4).bfloat16(),
    "gru": lambda: nn.GRU(5, 4, 2),
    "gru, both directions": lambda: nn.GRU(5, 4, bidirectional=True, batch_first=True),
    "rnn, tanh": lambda: nn.RNN(5, 4, 2),
    "rnn, relu": lambda: nn.RNN(5, 4, nonlinearity="relu"),
}


def run(make, device: str, train: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layer = make().to(device)
    x = X.to(device, next(layer.parameters()).dtype, copy=True).requires_grad_(train)
    with torch.inference_mode(not train):
        output, state = layer(x)
        results = [output, *(state if isinstance(state, tuple) else (state,))]
    if train:
        sum(result.square().sum() for result in results).backward()
        results += [x.grad, *(parameter.grad for parameter in layer.parameters())]
    return [result.detach() for result in results]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_same_as_cpu(name, train):
    expected = run(LAYERS[name], "cpu", train)
    torch.gapless.departures.reset()
    actual = run(LAYERS[name], "gapless", train)
    waited = [d for d in torch.gapless.departures.counts() if not d.operation.startswith("copy")]
    assert waited == []
    for mine, theirs in zip(actual, expected, strict=True):
        assert torch.equal(mine.cpu(), theirs)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_same_as_cpu(cell):
    def step(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        result = cell(5, 4).to(device)(X[0].to(device))
        return result[0] if isinstance(result, tuple) else result

    assert torch.equal(step("gapless").cpu(), step("cpu"))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_packed_sequences(layer):
    """These add up in another order than on the CPU: step by step, not all steps at once."""

    def run_packed(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        packed = nn.utils.rnn.pack_padded_sequence(X.to(device), torch.tensor([6, 4, 1]))
        return layer(5, 4).to(device)(packed)[0].data

    torch.testing.assert_close(run_packed("gapless").cpu(), run_packed("cpu"))


def test_an_lstm_can_be_replayed():
    torch.manual_seed(0)
    layer = nn.LSTM(5, 4).to("gapless")
    x = X.to("gapless", copy=True)
    with torch.inference_mode():
        expected = layer(x)[0].cpu()
        graph = torch.accelerator.Graph()
        with torch.Stream("gapless"), graph:
            output = layer(x)[0]
        output.zero_()
        torch.accelerator.synchronize()
        graph.replay()
        torch.accelerator.synchronize()
    assert torch.equal(output.cpu(), expected)
