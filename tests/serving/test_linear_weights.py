"""The forms of a linear layer's weight, compared with PyTorch's own product."""

import pytest
import torch

from gapless import _C
from gapless.kernels.half_weight import HalfWeight, float16_exponent
from gapless.serving.linear_weights import Int8Weight, PackedWeight, best_weight, form_wanted

needs_float16 = pytest.mark.skipif(
    not _C.has_avx2(), reason="this processor has no AVX2, FMA and F16C"
)


@pytest.fixture
def weight():
    torch.manual_seed(0)
    return (torch.randn(96, 64) * 0.05).bfloat16().to("gapless")


@needs_float16
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 64), (7, 64), (2, 3, 64)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_half_weights_are_multiplied_in_float32(weight, dtype, shape, has_bias):
    x = torch.randn(shape).to(dtype)
    bias = torch.randn(96).to(dtype) if has_bias else None
    found = HalfWeight(weight).multiply(
        x.to("gapless"), None if bias is None else bias.to("gapless")
    )
    exact = torch.nn.functional.linear(
        x.double(), weight.cpu().double(), None if bias is None else bias.double()
    )
    assert found.dtype == dtype
    assert found.shape == (*shape[:-1], 96)
    torch.testing.assert_close(found.cpu(), exact.to(dtype))


@needs_float16
@pytest.mark.parametrize("outputs", [1, 31, 32, 200])
@pytest.mark.parametrize("inputs", [1, 70, 900])
def test_a_row_does_not_depend_on_the_rows_beside_it(outputs, inputs):
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs).half()
    packed = HalfWeight(weight.to("gapless"))
    most = torch.randn(230, inputs)
    together = packed.multiply(most.to("gapless"), None).cpu()
    exact = most.double() @ weight.double().T
    torch.testing.assert_close(together, exact.float(), rtol=1e-5, atol=1e-5 * inputs**0.5)
    for count in (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 97):
        rows = packed.multiply(most[:count].to("gapless"), None).cpu()
        assert torch.equal(rows, together[:count]), count


@needs_float16
def test_no_rows_are_no_work(weight):
    assert HalfWeight(weight).multiply(torch.empty(0, 64, device="gapless"), None).shape == (0, 96)


@needs_float16
def test_what_does_not_fit_is_refused(weight):
    packed = HalfWeight(weight)

    def multiply():
        packed.multiply(torch.ones(2, 96, device="gapless"), None)
        torch.accelerator.synchronize()

    with pytest.raises(RuntimeError, match=r"half_weight_linear: .*do not fit"):
        multiply()


@needs_float16
def test_in_a_graph(weight):
    x = torch.zeros(4, 64, device="gapless")
    graph, stream = torch.accelerator.Graph(), torch.Stream("gapless")
    packed = HalfWeight(weight)
    with stream, graph:
        out = packed.multiply(x, None)
    for seed in range(3):
        torch.manual_seed(seed)
        rows = torch.randn(4, 64)
        x.copy_(rows)
        torch.accelerator.synchronize()
        graph.replay()
        torch.accelerator.synchronize()
        torch.testing.assert_close(out.cpu(), rows @ weight.cpu().float().T)


def test_int8_weights_are_near(weight):
    x = torch.randn(5, 64).bfloat16()
    bias = torch.randn(96).bfloat16()
    found = Int8Weight(weight).multiply(x.to("gapless"), bias.to("gapless")).cpu().float()
    exact = torch.nn.functional.linear(x.float(), weight.cpu().float(), bias.float())
    assert (found - exact).abs().max() < 0.03 * exact.abs().max()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1.0, 1 / 3]], None),  # float32 has more digits
        ([[1.0, 0.3330078125]], 0),  # and 11 bits are float16's
        ([[0.0, 0.0]], 0),
        ([[1.0, 1.3e-8]], 0),  # lost beside 1 in float32's sums as well
        # 2^-18 + 2^-25 has 8 bits, of which float16 lacks the last one so near its smallest number.
        ([[1.0, 2.0**-18 + 2.0**-25]], 0),
        ([[0.25, 2.0**-18 + 2.0**-25]], 16),
        ([[-0.25, 2.0**-18 + 2.0**-25]], 16),
        ([[2.0**17, 1.0]], -3),  # beyond float16's largest
        ([[1e-38, 1e-40]], None),
        ([[float("inf"), 1.0]], None),
    ],
)
def test_float16_is_taken_where_it_changes_nothing(values, expected):
    assert float16_exponent(torch.tensor(values)) == expected


def test_bfloat16_numbers_are_float16_numbers_times_a_power_of_two():
    torch.manual_seed(0)
    for scale in (1e-4, 0.02, 1.0, 1e4):
        weight = (torch.randn(256, 256) * scale).bfloat16()
        exponent = float16_exponent(weight)
        assert exponent is not None
        scaled = weight.float() * 2.0**exponent
        error = (scaled.half().float() - scaled).abs().max()
        assert error <= 2.0**-24 * scaled.abs().max()


@needs_float16
@pytest.mark.parametrize("exponent", [4, 16])
def test_the_exponent_is_taken_out_again(weight, exponent):
    x = torch.randn(5, 64).to("gapless")
    found = HalfWeight(weight, exponent).multiply(x, None)
    assert torch.equal(found.cpu(), HalfWeight(weight).multiply(x, None).cpu())


@needs_float16
@pytest.mark.skipif(
    torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor computes bfloat16"
)
def test_the_best_form_is_the_smallest_that_is_exact(weight):
    assert isinstance(best_weight(weight), HalfWeight)
    assert isinstance(best_weight(weight.float()), HalfWeight)


def test_forms_are_chosen_by_name():
    assert form_wanted({}) is best_weight
    assert form_wanted({"linear_weights": "int8"}) is Int8Weight
    assert form_wanted({"linear_weights": "plain"}) is PackedWeight
    with pytest.raises(ValueError, match="linear_weights int4: it may be plain"):
        form_wanted({"linear_weights": "int4"})
    with pytest.raises(
        ValueError, match="linear_weight: gapless knows no such option; linear_weig"
    ):
        form_wanted({"linear_weight": "int8"})
