"""torch.compile of code that touches streams, events, synchronization and autocast."""

import pytest
import torch


def with_streams(a: torch.Tensor) -> torch.Tensor:
    stream, event = torch.Stream("gapless"), torch.Event("gapless")
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        b = a @ a
    event.record(stream)
    event.wait()
    return b + 1


def with_our_streams(a: torch.Tensor) -> torch.Tensor:
    stream = torch.gapless.Stream()
    stream.wait_stream(torch.gapless.current_stream())
    with torch.gapless.stream(stream):
        b = a * 2
    torch.gapless.current_stream().wait_stream(stream)
    return b - 1


def with_synchronization(a: torch.Tensor) -> torch.Tensor:
    b = a @ a
    torch.accelerator.synchronize()
    c = b.relu()
    torch.gapless.synchronize()
    return c * 2


def with_autocast(a: torch.Tensor) -> torch.Tensor:
    with torch.autocast("gapless", dtype=torch.bfloat16):
        b = (a @ a).relu()
        with torch.autocast("gapless", enabled=False):
            b = b + b.float() @ a
    return b


def with_random_numbers(a: torch.Tensor) -> torch.Tensor:
    return a + torch.rand(4, device=a.device) + torch.nn.functional.dropout(a, 0.5)


def with_values(a: torch.Tensor) -> torch.Tensor:
    return a[a > 0].sum() + (a + 1 if a.sum() > 0 else a - 1).sum()


def with_devices(a: torch.Tensor) -> torch.Tensor:
    with torch.gapless.device(0), torch.device("gapless"):
        return torch.ones(4) + a.cpu().to("gapless") + torch.accelerator.current_device_index()


FUNCTIONS = [
    with_streams,
    with_our_streams,
    with_synchronization,
    with_autocast,
    with_random_numbers,
    with_values,
    with_devices,
]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_compiled_function_gives_the_same(function, backend):
    operand = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).to("gapless")
    torch.manual_seed(0)
    expected = function(operand)
    compiled = torch.compile(function, backend=backend)
    for _ in range(2):  # compiled, and found again
        torch.manual_seed(0)
        got = compiled(operand)
        assert got.dtype == expected.dtype
        assert torch.equal(got.cpu(), expected.cpu())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_training_compiled(backend):
    def train(compiled: bool) -> list[list[float]]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        ).to("gapless")
        run = torch.compile(model, backend=backend) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
            with torch.autocast("gapless", dtype=torch.bfloat16):
                loss = run(inputs.to("gapless")).float().square().mean()
            loss.backward()
            optimizer.step()
        return [parameter.flatten().tolist() for parameter in model.parameters()]

    assert train(compiled=True) == train(compiled=False)


def test_plain_code_is_one_graph():
    def function(a: torch.Tensor) -> torch.Tensor:
        with torch.autocast("gapless", dtype=torch.bfloat16):
            return (a @ a).relu().sum()

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    operand = torch.ones(4, 4, device="gapless")
    assert compiled(operand).item() == function(operand).item()


def test_dynamo_knows_the_device():
    from torch._dynamo.device_interface import get_interface_for_device

    for name in ("gapless", "gapless:0"):
        interface = get_interface_for_device(name)
        assert interface.is_available()
        assert interface.current_device() == 0
        assert interface.get_raw_stream(0) == 0
        assert interface.current_stream() == torch.accelerator.current_stream()
        interface.synchronize()
