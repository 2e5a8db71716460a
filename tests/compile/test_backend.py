"""Compiled against eager. Each program takes the compiler a while, so that there are few."""

import pytest
import torch
from torch import nn

from gapless.compile import gapless_backend, statistics
from gapless.compile.artifact_cache import programs_root
from gapless.compile.errors import ProgramMissing


class Small(nn.Module):
    """Training statistics, a counter, a bias: everything that is written in a forward pass."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.outer = nn.Linear(8, 3)

    def forward(self, x):
        return self.outer(torch.relu(self.norm(self.inner(x))))


def test_the_backend_is_found_by_name():
    assert "gapless" in torch._dynamo.list_backends()


def test_a_training_step_is_that_of_the_cpu():
    torch.manual_seed(0)
    expected = Small()
    actual = Small().to("gapless")
    actual.load_state_dict(expected.state_dict())
    compiled = torch.compile(actual, backend=gapless_backend)
    x = torch.randn(5, 6)
    for _ in range(2):
        expected(x).square().mean().backward()
        compiled(x.to("gapless")).square().mean().backward()
    for theirs, ours in zip(expected.parameters(), actual.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)
    for theirs, ours in zip(expected.buffers(), actual.buffers(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)
    counts = statistics()
    assert (counts.compiled, counts.launches, counts.eager) == (2, 4, {})


def scaled(x, scale):
    x.mul_(2)
    return torch.sin(x) * scale, x


def test_a_program_is_found_again_captured_and_rebuilt(monkeypatch, capsys):
    def compiled():
        torch._dynamo.reset()
        return torch.compile(scaled, backend=gapless_backend)

    def check(function):
        x, scale = torch.ones(5, device="gapless"), torch.tensor(3.0)
        result, same = function(x, scale)
        assert same is x
        torch.testing.assert_close(result.cpu(), torch.sin(torch.full((5,), 2.0)) * 3)
        assert x.tolist() == [2] * 5

    before = (
        {path.name for path in programs_root().glob("[!.]*")} if programs_root().exists() else set()
    )
    monkeypatch.setenv("GAPLESS_COMPILE", "never")
    with pytest.raises(
        ProgramMissing, match=r"float32\[5\], float32\[\], float32\[5\] in .*GAPLESS_COMPILE=never"
    ):
        check(compiled())
    monkeypatch.setenv("GAPLESS_COMPILE", "wait")
    check(compiled())
    assert (statistics().compiled, statistics().loaded) == (1, 0)
    monkeypatch.setenv("GAPLESS_COMPILE", "never")
    check(compiled())
    assert (statistics().compiled, statistics().loaded) == (1, 1)

    function = compiled()
    x, scale = torch.ones(5, device="gapless"), torch.tensor(3.0)
    graph = torch.accelerator.Graph()
    function(x, scale)
    with graph:
        result, _ = function(x, scale)
    x.fill_(0.5)
    graph.replay()
    torch.testing.assert_close(result.cpu(), torch.sin(torch.ones(5)) * 3)

    (entry,) = [path for path in programs_root().glob("[!.]*") if path.name not in before]
    with (entry / "program.so").open("r+b") as file:
        file.seek(1000)
        file.write(b"broken")
    torch._dynamo.reset()
    with pytest.raises(ProgramMissing, match=r"is broken \(the checksum of program.so is wrong\)"):
        check(compiled())
    torch._dynamo.reset()
    monkeypatch.setenv("GAPLESS_COMPILE", "wait")
    check(compiled())
    assert statistics().compiled == 2
    assert "the checksum of program.so is wrong" in capsys.readouterr().err


def test_random_numbers_run_operator_by_operator_and_are_counted():
    function = torch.compile(lambda x: nn.functional.dropout(x, 0.5), backend=gapless_backend)
    with pytest.warns(UserWarning, match="operator by operator: .*draws random numbers"):
        result = function(torch.ones(100, device="gapless"))
    assert set(result.unique().tolist()) == {0.0, 2.0}
    (reason,) = statistics().eager
    assert "draws random numbers" in reason


def test_a_tensor_of_the_host_among_the_arguments_is_counted():
    function = torch.compile(lambda x, y: x + y.to("gapless"), backend=gapless_backend)
    with pytest.warns(UserWarning, match="an argument of several values is on the host"):
        result = function(torch.ones(3, device="gapless"), torch.arange(3.0))
    assert result.tolist() == [1, 2, 3]
    assert statistics().eager == {"an argument of several values is on the host": 1}
