import pytest
import torch

from gapless.kernels.greedy_argmax import greedy_argmax


@pytest.mark.parametrize("shape", [(1, 1), (2, 31), (3, 33), (5, 1024), (4, 1025), (33, 49152)])
def test_as_argmax(shape):
    torch.manual_seed(0)
    for logits in (torch.randn(shape), torch.randint(0, 3, shape).float(), torch.full(shape, -9.0)):
        assert torch.equal(greedy_argmax(logits.to("gapless")).cpu(), logits.argmax(-1))


@pytest.mark.parametrize("place", [0, 5, 31, 32, 1023, 1024, 4999])
@pytest.mark.parametrize("number", [float("inf"), float("nan"), 1e30])
def test_one_number_above_all(place, number):
    logits = torch.randn(3, 5000)
    logits[1, place] = number
    logits[1, place + 1 :] = logits[1, place + 1 :].clamp(max=number) if number < 1e38 else number
    assert greedy_argmax(logits.to("gapless")).tolist()[1] == place


def test_nothing_but_the_smallest():
    logits = torch.full((2, 100), float("-inf"))
    logits[1, 70] = -1e38
    assert greedy_argmax(logits.to("gapless")).tolist() == [0, 70]


def test_what_the_kernel_does_not_take():
    logits = torch.randn(3, 50)
    assert torch.equal(greedy_argmax(logits.half().to("gapless")).cpu(), logits.half().argmax(-1))
    columns = logits.to("gapless").t()
    assert torch.equal(greedy_argmax(columns).cpu(), logits.t().argmax(-1))


def test_what_does_not_fit_is_refused():
    def choose():
        out = torch.empty(2, dtype=torch.int64, device="gapless")
        torch.ops.gapless.greedy_argmax(out, torch.ones(3, 4, device="gapless"))
        torch.accelerator.synchronize()

    with pytest.raises(RuntimeError, match=r"greedy_argmax: .* do not fit"):
        choose()
