"""Padded up to a bucket and cut down again, results are those of the very size."""

import threading

import pytest
import torch

from gapless.compile import Bucketed, Paddable, wait_until_compiled
from gapless.compile.compiler_process import make_elsewhere
from gapless.errors import UsageError

WEIGHT = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
WEIGHTS = {"cpu": WEIGHT, "gapless": WEIGHT.to("gapless")}


def attend(x, mask):
    """Rows are apart from each other, and a masked column has no weight."""
    weights = (x @ WEIGHTS[x.device.type]).sum(-1) + mask
    return {"weights": weights.softmax(-1), "mean": (weights.softmax(-1).unsqueeze(-1) * x).sum(1)}


def bucketed(rows=(2, 4), columns=(8,), **options) -> Bucketed:
    # Flattened, results come in the order of the dict: weights, mean.
    return Bucketed(
        attend,
        {
            "rows": Paddable(rows, {0: 0, "mask": 0}, {0: 0, 1: 0}),
            "columns": Paddable(columns, {0: 1, "mask": 1}, {0: 1}, fill={"mask": float("-inf")}),
        },
        **options,
    )


def check(function: Bucketed, rows: int, columns: int) -> None:
    x = torch.randn(rows, columns, 3, generator=torch.Generator().manual_seed(rows))
    mask = torch.zeros(rows, columns)
    expected = attend(x, mask)
    actual = function(x.to("gapless"), mask=mask.to("gapless"))
    for name, value in expected.items():
        assert actual[name].shape == value.shape
        torch.testing.assert_close(actual[name].cpu(), value)


# A row that is padding has only masked columns, and softmax makes NaN of that: it is cut away.
def test_calls_are_padded_to_the_nearest_bucket_and_results_cut():
    function = bucketed()
    for rows, columns in ((2, 8), (1, 5), (2, 3), (1, 8)):
        check(function, rows, columns)
    assert function.statistics.calls == {(2, 8): 4}
    assert function.statistics.padded_elements == 1 + 3 + 5 + 1
    assert function.statistics.exact == 0
    check(function, 2, 9)  # beyond the largest bucket: a program of its own
    assert function.statistics.calls[(2, 9)] == 1
    assert function.statistics.exact == 1


@pytest.mark.thorough
def test_the_nearest_bucket_serves_while_the_right_one_is_being_made(monkeypatch):
    hold = threading.Event()
    hold.set()

    def make(request):
        assert hold.wait(60)
        return make_elsewhere(request)

    monkeypatch.setattr("gapless.compile.static_programs.make_elsewhere", make)
    function = bucketed(mode="background")
    check(function, 4, 8)
    wait_until_compiled()
    check(function, 4, 8)
    hold.clear()
    check(function, 2, 8)  # begins to make it, and runs operator by operator
    assert function.statistics.nearest == 0
    check(function, 2, 8)
    check(function, 1, 4)
    assert function.statistics.nearest == 2
    assert function.statistics.calls == {(4, 8): 4, (2, 8): 1}
    hold.set()
    wait_until_compiled()
    check(function, 2, 8)
    assert function.statistics.nearest == 2
    assert function.statistics.calls == {(4, 8): 4, (2, 8): 2}


def test_warming_makes_every_bucket():
    function = bucketed(rows=(2, 4))
    x = torch.ones(4, 8, 3, device="gapless")
    function.warm(x, mask=torch.zeros(4, 8, device="gapless"))
    assert set(function.statistics.calls) == {(2, 8), (4, 8)}


@pytest.mark.parametrize(
    ("declare", "match"),
    [
        (lambda: bucketed(rows=(4, 2)), r"buckets \[4, 2\] of 'rows'.*ascending"),
        (lambda: bucketed(rows=()), "give sizes from 1 up"),
        (lambda: Bucketed(attend, {"rows": Paddable((1,), {}, {})}), "which arguments"),
    ],
)
def test_declarations_that_mean_nothing_are_refused(declare, match):
    with pytest.raises(UsageError, match=match):
        declare()


def test_calls_that_do_not_fit_the_declaration_are_refused():
    function = bucketed()
    x, mask = torch.ones(2, 8, 3, device="gapless"), torch.zeros(2, 8, device="gapless")
    with pytest.raises(UsageError, match="there is no argument 'mask'"):
        function(x)
    with pytest.raises(UsageError, match="argument 'mask' has 1 and another one 2"):
        function(x, mask=mask[:1])
    with pytest.raises(UsageError, match="is dimension 0 of argument 'mask', which is a float"):
        function(x, mask=0.0)
    assert function.statistics.calls == {}
