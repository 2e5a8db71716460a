"""Custom operators work on the device though their authors never heard of it."""

import pytest
import torch


@pytest.fixture(scope="module")
def library():
    with torch.library._scoped_library("gapless_tests", "FRAGMENT") as lib:
        for name in ("twice", "twice_with_shape"):
            lib.define(f"{name}(Tensor x) -> Tensor")
            lib.impl(name, lambda x: x * 2, "CPU")
        lib.define("double_(Tensor(a!) x) -> Tensor(a!)")
        lib.impl("double_", lambda x: x.mul_(2), "CPU")
        torch.library.register_fake("gapless_tests::twice_with_shape", torch.empty_like, lib=lib)
        yield torch.ops.gapless_tests


@pytest.fixture(autouse=True)
def _no_departures():
    torch.accelerator.synchronize()
    torch.gapless.departures.reset()


def waited() -> dict[str, str]:
    return {d.operation: d.reason for d in torch.gapless.departures.counts()}


def test_with_a_shape_function_it_is_asynchronous(library):
    result = library.twice_with_shape(torch.ones(3, device="gapless"))
    assert waited() == {}
    assert result.device.type == "gapless"
    assert result.tolist() == [2, 2, 2]


def test_without_one_the_host_waits_and_says_so(library):
    result = library.twice(torch.ones(3, device="gapless"))
    assert waited() == {"gapless_tests::twice": "it has no shape function"}
    assert result.device.type == "gapless"
    assert result.tolist() == [2, 2, 2]


def test_in_place_needs_no_shape_function(library):
    x = torch.ones(3, device="gapless")
    assert library.double_(x) is x
    assert waited() == {}
    assert x.tolist() == [2, 2, 2]
