"""Shape functions of our own give what PyTorch's give, and spare the import of its tracer."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
FLOATS = (F32, F64, F16, BF16)


def _layouts(dtype, *shapes):
    """Tensors of these shapes: contiguous, transposed, with gaps, and channels last."""
    for shape in shapes:
        plain = torch.ones(shape, dtype=dtype)
        yield plain
        if len(shape) >= 2:
            yield torch.ones((*shape[:-2], shape[-1], shape[-2]), dtype=dtype).transpose(-1, -2)
            yield torch.ones((*shape[:-1], 2 * shape[-1]), dtype=dtype)[..., ::2]
        if len(shape) == 4:
            yield plain.to(memory_format=torch.channels_last)


SHAPES = ((), (3,), (0, 4), (2, 3), (2, 3, 4), (2, 4, 3, 5))


def _unary(function, dtypes):
    for dtype in dtypes:
        for tensor in _layouts(dtype, *SHAPES):
            yield function, (tensor,)


def _binary(function, dtypes):
    for dtype in dtypes:
        for tensor in _layouts(dtype, (2, 3), (2, 4, 3, 5)):
            for other in (
                torch.ones(tensor.shape, dtype=dtype),
                tensor,
                torch.ones(tensor.shape[-1:], dtype=dtype),
                torch.ones(tensor.shape[1:], dtype=torch.int32),
                torch.tensor(2, dtype=F64),
                torch.ones((*tensor.shape[:-1], 1), dtype=F32),
            ):
                yield function, (tensor, other)


def _where():
    for _, (tensor, other) in _binary(torch.where, (F32, BF16, torch.int64, torch.bool)):
        yield torch.where, (tensor > 0, tensor, other)
        yield torch.where, (torch.tensor(True), other, tensor)
        yield torch.where, (tensor > 0, tensor, 1.5)


def _layer_norm():
    for dtype in FLOATS:
        for shape in ((2, 3), (2, 4, 3, 5), (0, 3)):
            for last in range(1, len(shape) + 1):
                normalized = shape[len(shape) - last :]
                weights = [None, torch.ones(normalized, dtype=dtype), torch.ones(normalized)]
                for tensor in _layouts(dtype, shape):
                    for weight in weights:
                        yield torch.native_layer_norm, (tensor, normalized, weight, weight, 1e-5)


def _batch_norm():
    for dtype in FLOATS:
        for tensor in _layouts(dtype, (2, 4), (2, 4, 3), (2, 4, 3, 5)):
            for other in {dtype, F32}:
                values = torch.ones(4, dtype=other)
                for parameters in ((values, values), (None, None)):
                    for training in (True, False):
                        yield (
                            torch.native_batch_norm,
                            (tensor, *parameters, values, values, training, 0.1, 1e-5),
                        )
                yield (
                    torch.native_batch_norm,
                    (tensor, values, values, None, None, True, 0.1, 1e-5),
                )


def _group_norm():
    for dtype in FLOATS:
        for tensor in _layouts(dtype, (2, 4, 3), (2, 4, 3, 5)):
            pixels = tensor.numel() // 8
            for weight in (None, torch.ones(4, dtype=dtype)):
                yield torch.native_group_norm, (tensor, weight, weight, 2, 4, pixels, 2, 1e-5)


def _spreads():
    for function in (torch.var, torch.std, torch.var_mean, torch.std_mean):
        for dtype in FLOATS:
            for tensor in _layouts(dtype, (3,), (2, 3), (2, 4, 3, 5)):
                for dims in (None, -1, 0, tuple(range(tensor.dim()))):
                    for keepdim in (False, True):
                        yield (
                            lambda x, f=function, d=dims, k=keepdim: f(
                                x, dim=d, correction=1, keepdim=k
                            ),
                            (tensor,),
                        )


CASES = {
    "abs": lambda: _unary(torch.abs, (*FLOATS, torch.int64, torch.uint8)),
    "angle": lambda: _unary(torch.angle, FLOATS),
    "relu": lambda: _unary(torch.relu, (*FLOATS, torch.int64)),
    "hardtanh": lambda: _unary(nn.functional.hardtanh, (F32, F64, BF16)),
    "hardswish": lambda: _unary(nn.functional.hardswish, (F32, F64, BF16)),
    "isnan": lambda: _unary(torch.isnan, FLOATS),
    "logit": lambda: _unary(torch.logit, (F32, F64, BF16)),
    "logical_not": lambda: _unary(torch.logical_not, (F32, torch.int64, torch.bool)),
    "logical_and": lambda: _binary(torch.logical_and, (F32, torch.int64, torch.bool)),
    "logical_or": lambda: _binary(torch.logical_or, (F32, torch.bool)),
    "logical_xor": lambda: _binary(torch.logical_xor, (F32, torch.bool)),
    "floor_divide": lambda: _binary(torch.floor_divide, (F32, BF16, torch.int64, torch.uint8)),
    "where": _where,
    "layer_norm": _layer_norm,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "var_std": _spreads,
    "dot": lambda: iter([(torch.dot, (torch.ones(3), torch.ones(3)))]),
}


def _on_device(values):
    """With their layouts, gaps included; numbers and tensors that stand for one stay."""
    moved = []
    for value in values:
        if _is_tensor(value) and value.dim():
            layout = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="gapless"
            )
            moved.append(layout.copy_(value))
        else:
            moved.append(value)
    return moved


def _seen(results):
    if isinstance(results, torch.Tensor):
        results = (results,)
    return [(tuple(each.shape), each.dtype, each.stride()) for each in results]


def _strides(results):
    return [each[2] for each in _seen(results)]


def _result(function, arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", CASES)
def test_results_look_like_pytorchs(name):
    """Like the CPU's, whose kernels run. Its layouts differ from PyTorch's shape functions' at
    times, where operands have gaps or orders of their own; then either will do."""
    checked = 0
    for function, arguments in CASES[name]():
        expected = _result(function, arguments)
        found = _result(function, _on_device(arguments))
        if isinstance(expected, type):
            assert isinstance(found, type) or _fails_later(), (arguments, expected)
            continue
        assert not isinstance(found, type), (arguments, found)
        assert [each[:2] for each in _seen(found)] == [each[:2] for each in _seen(expected)]
        strides, of_cpu = _strides(found), _strides(expected)
        if strides != of_cpu and arguments[0].numel():
            assert not all(each.is_contiguous() for each in arguments if _is_tensor(each))
            assert strides == _strides(function(*[_meta(each) for each in arguments])), arguments
        checked += 1
    assert checked


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def _fails_later():
    try:
        torch.accelerator.synchronize()
    except torch.AcceleratorError:
        return True
    return False


def _meta(value):
    return value.to("meta") if _is_tensor(value) else value


@pytest.mark.parametrize(
    ("function", "arguments", "says"),
    [
        (nn.functional.layer_norm, [torch.ones(2, 3), (4,)], "normalized_shape"),
        (torch.dot, [torch.ones(2), torch.ones(3)], "size"),
        (torch.where, [torch.ones(2), torch.ones(2), torch.ones(2)], "bool"),
    ],
    ids=["layer_norm", "dot", "where"],
)
def test_what_is_refused_is_refused_at_once(function, arguments, says):
    with pytest.raises((RuntimeError, ValueError), match=says):
        function(*_on_device(arguments))


@pytest.mark.parametrize("function", [torch.abs, torch.logical_not])
def test_outputs_are_sized(function):
    for _, (tensor,) in _unary(function, (F32,)):
        expected = function(tensor, out=torch.empty(0, dtype=function(tensor).dtype))
        given = torch.empty(0, dtype=expected.dtype, device="gapless")
        found = function(tensor.to("gapless"), out=given)
        assert found is given
        assert _seen(found) == _seen(expected)


OPERATORS = """
    import sys
    import torch
    from torch import nn
    from torch.nn import functional as F

    x, i = torch.randn(2, 4, device="gapless"), torch.zeros(2, dtype=torch.int64, device="gapless")
    image, ones = torch.randn(2, 4, 3, 3, device="gapless"), torch.ones(4, device="gapless")
    calls = {
        "relu": lambda: torch.relu(x), "abs": lambda: x.abs(), "neg": lambda: -x,
        "where": lambda: torch.where(x > 0, x, 0.0), "exp": lambda: x.exp(),
        "layer_norm": lambda: F.layer_norm(x, (4,), ones, ones),
        "batch_norm": lambda: F.batch_norm(image, ones, ones, ones, ones),
        "batch_norm, training": lambda: F.batch_norm(image, ones.clone(), ones.clone(),
                                                     training=True),
        "group_norm": lambda: F.group_norm(image, 2), "rms_norm": lambda: F.rms_norm(x, (4,)),
        "logical_not": lambda: (x > 0).logical_not(), "mul": lambda: x * 2, "add": lambda: x + x,
        "logical_and": lambda: (x > 0).logical_and(x < 1), "isnan": lambda: x.isnan(),
        "bitwise_and": lambda: (x > 0) & (x < 1), "div": lambda: x / 3, "sub": lambda: x - 1,
        "floor_divide": lambda: i // 2, "remainder": lambda: i % 2, "clamp": lambda: x.clamp(0, 1),
        "sum": lambda: x.sum(), "mean": lambda: x.mean(-1), "std": lambda: x.std(),
        "var": lambda: x.var(-1), "max": lambda: x.max(-1), "amax": lambda: x.amax(),
        "argmax": lambda: x.argmax(-1), "softmax": lambda: x.softmax(-1),
        "log_softmax": lambda: x.log_softmax(-1), "gelu": lambda: F.gelu(x),
        "silu": lambda: F.silu(x), "sigmoid": lambda: x.sigmoid(), "tanh": lambda: x.tanh(),
        "hardtanh": lambda: F.hardtanh(x), "relu6": lambda: F.relu6(x), "elu": lambda: F.elu(x),
        "hardswish": lambda: F.hardswish(x), "leaky_relu": lambda: F.leaky_relu(x),
        "softplus": lambda: F.softplus(x), "pow": lambda: x**2, "rsqrt": lambda: x.abs().rsqrt(),
        "cat": lambda: torch.cat([x, x]), "stack": lambda: torch.stack([x, x]),
        "embedding": lambda: F.embedding(i, x), "index": lambda: x[i], "mm": lambda: x @ x.t(),
        "gather": lambda: x.gather(1, i[:, None]), "linear": lambda: F.linear(x, x, x[:, 0]),
        "bmm": lambda: torch.bmm(x[None], x.t()[None]), "cumsum": lambda: x.cumsum(0),
        "conv2d": lambda: F.conv2d(image, image), "max_pool2d": lambda: F.max_pool2d(image, 2),
        "avg_pool2d": lambda: F.avg_pool2d(image, 2), "triu": lambda: x.triu(),
        "cross_entropy": lambda: F.cross_entropy(x, i), "mse_loss": lambda: F.mse_loss(x, x * 2),
        "dropout": lambda: F.dropout(x), "topk": lambda: x.topk(2), "sort": lambda: x.sort(),
        "masked_fill": lambda: x.masked_fill(x > 0, 1.0), "arange": lambda: i.new_empty(3).fill_(1),
        "rand": lambda: torch.rand(3, device="gapless"), "eq": lambda: x == x,
        "attention": lambda: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    }
    for name, call in calls.items():
        call()
        assert "torch._dynamo" not in sys.modules, name
"""
MODELS = """
    import sys
    import torch
    from torch import nn

    mlp = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)).to("gapless")
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to("gapless")
    convolution = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                                nn.Linear(36, 2)).to("gapless")
    for model, size in ((mlp, (3, 4)), (encoder, (2, 5, 16)), (convolution, (2, 3, 5, 5))):
        inputs = torch.randn(size, device="gapless")
        with torch.no_grad():
            model(inputs).sum().item()
            model.eval()(inputs).sum().item()
        assert "torch._dynamo" not in sys.modules, model
"""


@pytest.mark.parametrize("source", [OPERATORS, MODELS], ids=["operators", "models"])
def test_the_tracer_is_not_imported(source):
    """It takes seconds. In a process of its own: here other tests have imported it."""
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "GAPLESS_SIM_NUMERICS": "exact"},
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
