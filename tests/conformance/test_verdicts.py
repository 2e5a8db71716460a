"""The suite itself: it notices differences, deaths, the unexplained and the outdated."""

import pytest
import torch

from . import reasons
from .comparison import Mismatch, compare
from .mirror import mirrored
from .pool import checked
from .reasons import Reason
from .report import summary

FAILS = {
    "operator": "add",
    "outcomes": [
        {
            "check": "out",
            "dtype": "int64",
            "tried": 3,
            "random": 0,
            "failures": ["Mismatch: result"],
            "refused": False,
        }
    ],
    "departures": {},
}
PASSES = {**FAILS, "outcomes": [{**FAILS["outcomes"][0], "failures": []}]}


def test_every_difference_is_noticed():
    expected = torch.tensor([1.0, float("nan"), 0.0])
    compare(expected.to("gapless"), expected)
    for wrong in (
        torch.tensor([1.0, float("nan"), -0.0]),
        torch.tensor([1.0, 2.0, 0.0]),
        torch.tensor([1.0 + 2**-23, float("nan"), 0.0]),
        torch.tensor([1.0, float("nan"), 0.0], dtype=torch.float64),
        torch.tensor([[1.0, float("nan"), 0.0]]),
    ):
        with pytest.raises(Mismatch):
            compare(wrong.to("gapless"), expected)
    with pytest.raises(Mismatch, match="instead of 3"):
        compare(2, 3)


def test_layouts_are_mirrored():
    base = torch.arange(24).to(torch.complex64).reshape(4, 6)
    for tensor in (base.t(), base[1:, ::2], base[:, :1].expand(4, 3), base.conj(), base.imag):
        copy = mirrored(tensor, "gapless")
        assert copy.stride() == tensor.stride()
        assert copy.is_conj() == tensor.is_conj()
        compare(copy, tensor)


def test_a_failure_needs_a_reason_and_a_reason_a_failure():
    reason = Reason("add", "out.*", "it rains")
    assert reasons.unexplained([FAILS], []) == ["add out.int64: Mismatch: result"]
    assert reasons.unexplained([FAILS], [reason]) == []
    assert reasons.stale([FAILS], [reason]) == []
    assert reasons.stale([PASSES], [reason]) == ["add out.*: it rains"]
    assert reasons.stale([], [reason]) == []  # not tried in this run
    assert reasons.unexplained([FAILS], [Reason("add", "grad.*", "it rains")]) != []


def test_the_summary_counts_operators():
    rows = summary([FAILS, PASSES])["rows"]
    assert rows["all"] == {"tried": 2, "passed": 1, "failed": 1}
    assert rows["out"] == {"tried": 2, "passed": 1, "failed": 1}
    assert rows["grad"] == {}


def test_reasons_have_causes(tmp_path):
    assert reasons.load()
    path = tmp_path / "reasons.toml"
    path.write_text('[[reason]]\noperators = ["add"]\n')
    with pytest.raises(ValueError, match=r"add.*no cause"):
        reasons.load(path)


def test_a_crash_costs_one_operator():
    results = list(checked(["no such operator", "neg"], ["float32"], 1, jobs=1, limit_s=200))
    assert [result["operator"] for result in results] == ["no such operator", "neg"]
    assert "KeyError" in results[0]["died"]
    assert reasons.failures_of(results[0])
    assert not reasons.failures_of(results[1])


def test_a_hang_is_a_failure():
    (result,) = checked(["neg"], ["float32"], 1, jobs=1, limit_s=-1)
    assert "not done within" in result["died"]
