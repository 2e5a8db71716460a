"""``out=``: tensors of no size or a wrong one are resized on the host, as on the CPU."""

import warnings

import pytest
import torch

A = torch.arange(12.0).reshape(3, 4)

CASES = {
    "add": lambda d, out: torch.add(A.to(d), 1, out=out),
    "mm": lambda d, out: torch.mm(A.to(d), A.to(d).t(), out=out),
    "cat": lambda d, out: torch.cat([A.to(d), A.to(d)], out=out),
    "nonzero, whose size depends on data": lambda d, out: torch.nonzero(A.to(d), out=out),
    "masked_select": lambda d, out: torch.masked_select(A.to(d), A.to(d) > 4, out=out),
    "conj_physical, without a wrapper": lambda d, out: torch.conj_physical(A.to(d), out=out),
    "linspace": lambda d, out: torch.linspace(0, 1, 5, out=out),
}


def output(name: str, device: str, *size: int) -> torch.Tensor:
    dtype = torch.long if name.startswith("nonzero") else torch.float
    return torch.zeros(size, dtype=dtype, device=device)


@pytest.mark.parametrize("name", CASES)
def test_no_size_is_sized_without_a_warning(name):
    out = output(name, "gapless", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CASES[name]("gapless", out)
    assert torch.equal(out.cpu(), CASES[name]("cpu", output(name, "cpu", 0)))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_size_is_resized(name):
    out = output(name, "gapless", 7)
    CASES[name]("gapless", out)
    assert torch.equal(out.cpu(), CASES[name]("cpu", output(name, "cpu", 7)))


def test_a_wrong_size_is_warned_of_each_time():
    for _ in range(2):  # the shapes are remembered; the warning must not depend on it
        with pytest.warns(UserWarning, match=r"shape \[7\].*required output shape \[3, 4\]"):
            torch.add(A.to("gapless"), 1, out=torch.zeros(7, device="gapless"))


def test_a_size_that_fits_stays_asynchronous():
    out = torch.zeros(3, 4, device="gapless")
    torch.gapless.departures.reset()
    torch.add(torch.ones(3, 4, device="gapless"), 1, out=out)
    torch.add(torch.ones(3, 4, device="gapless"), 1, out=torch.empty(0, device="gapless"))
    assert torch.gapless.departures.counts() == ()


def test_results_that_do_not_fit_the_dtype_are_refused():
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(A.to("gapless"), 1, out=torch.zeros(3, 4, dtype=torch.long, device="gapless"))
