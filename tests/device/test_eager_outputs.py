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


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("size", [0, 2, 7])
def test_batch_norm_with_running_statistics(size):
    def run(device: str) -> list[torch.Tensor]:
        channels = torch.ones(4, device=device)
        out = [torch.zeros(size, device=device) for _ in range(3)]
        torch.ops.aten._native_batch_norm_legit.out(
            *(A.to(device), channels, channels, channels.clone(), channels.clone()),
            *(True, 0.1, 1e-5),
            **dict(zip(("out", "save_mean", "save_invstd"), out, strict=True)),
        )
        return [tensor.cpu() for tensor in out]

    for expected, actual in zip(run("cpu"), run("gapless"), strict=True):
        assert torch.equal(expected, actual)


def test_changing_numbers_need_no_new_shapes():
    for step in range(1, 4):
        x = torch.full((3, 4), 2.0, device="gapless")
        x.add_(A.to("gapless"), alpha=0.5 * step)
        expected = torch.full((3, 4), 2.0).add_(A, alpha=0.5 * step)
        assert torch.equal(x.cpu(), expected)
        assert torch.equal(torch.pow(x, 0.1 * step).cpu(), torch.pow(expected, 0.1 * step))


def test_what_was_remembered_still_checks_other_shapes():
    x, row = torch.ones(3, 4, device="gapless"), torch.ones(4, device="gapless")
    for _ in range(2):
        x + row
        x.add_(row)
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        x + torch.ones(5, device="gapless")
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        row.add_(x)
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ones(4, dtype=torch.long, device="gapless").add_(row)


@pytest.mark.parametrize("name", ["triu", "tril"])
def test_kernels_that_ask_whether_the_output_is_the_input(name):
    x = torch.arange(120.0).reshape(5, 3, 4, 2)

    def run(device: str) -> list[torch.Tensor]:
        results = []
        for _ in range(2):  # through PyTorch's wrapper, and past it
            inplace, out = (x.clone().to(device).transpose(0, -1) for _ in range(2))
            getattr(inplace, f"{name}_")()
            getattr(torch, name)(out, out=out)
            results += [inplace.cpu(), out.cpu()]
        return results

    for expected, actual in zip(run("cpu"), run("gapless"), strict=True):
        assert torch.equal(expected, actual)


def test_a_host_number_and_an_empty_tensor():
    assert (torch.tensor(2.0) * torch.empty(0, device="gapless")).shape == (0,)
