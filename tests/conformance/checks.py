"""What is checked of one operator with one dtype: every sample, on the device and on the CPU."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from .comparison import Mismatch, compare
from .mirror import mapped, mirrored, tensors_of

DEVICE = "gapless:0"
#: Results of these are memory that nobody has written to; only their shape means something.
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}
#: These take their indices on the CPU, whatever device the rest is on.
HOST_INDICES = {"tensor_split"}


@dataclass
class Outcome:
    """One check of one operator with one dtype."""

    check: str
    dtype: str
    tried: int = 0
    random: int = 0
    failures: list[str] = field(default_factory=list)
    refused: bool = False


@dataclass
class Sample:
    """A call of an operator: PyTorch's sample, and where its arguments have to be."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    broadcasts_input: bool
    output_process_fn_grad: Callable[[Any], Any]
    on_host: bool  # all but the input stay on the CPU

    @classmethod
    def of(cls, op: OpInfo, sample: SampleInput) -> "Sample":
        """The database's sample."""
        return cls(
            sample.input,
            sample.args,
            sample.kwargs,
            sample.broadcasts_input,
            sample.output_process_fn_grad,
            op.name in HOST_INDICES,
        )

    def is_strided(self) -> bool:
        """Whether every tensor is dense."""
        every = tensors_of([self.input, list(self.args), self.kwargs])
        return all(tensor.layout == torch.strided for tensor in every)

    def noncontiguous(self) -> "Sample":
        """The same call on tensors with gaps."""
        plain = SampleInput(self.input, args=self.args, kwargs=self.kwargs)
        gaps = plain.noncontiguous()
        return replace(self, input=gaps.input, args=gaps.args, kwargs=gaps.kwargs)


class _Unsupported(Exception):
    """The CPU itself refuses; there is nothing to compare with."""


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` of ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def spread(samples: Iterable[Any], limit: int) -> list[Any]:
    """At most ``limit`` of the samples, from the first to the last at even distances."""
    every = list(samples)
    if len(every) <= limit:
        return every
    return [every[i * (len(every) - 1) // (limit - 1)] for i in range(limit)]


def check_operator(
    op: OpInfo, dtype: torch.dtype, limit: int, only: frozenset[str] | None = None
) -> Iterator[Outcome]:
    """Run every check that makes sense for the operator with the dtype, one outcome each.

    ``limit`` bounds the samples per check; ``only`` names the checks wanted.
    """
    checks: dict[str, Callable[[], Iterable[Callable[[], bool]]]] = {
        "forward": lambda: _forward(op, _samples(op, dtype, limit)),
        "noncontiguous": lambda: _forward(op, _gaps(_samples(op, dtype, limit))),
    }
    if op.supports_out:
        checks["out"] = lambda: _out(op, _samples(op, dtype, limit))
    if op.inplace_variant is not None:
        checks["inplace"] = lambda: _inplace(op, _with_gaps(_samples(op, dtype, limit)))
    if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"):
        checks["grad"] = lambda: _grad(op, _samples(op, dtype, limit, requires_grad=True))
    for name, make in checks.items():
        if only is None or name in only:
            yield _run(Outcome(name, dtype_name(dtype)), make)


def _samples(
    op: OpInfo, dtype: torch.dtype, limit: int, requires_grad: bool = False
) -> list[Sample]:
    torch.manual_seed(1)
    np.random.seed(1)
    samples = spread(op.sample_inputs("cpu", dtype, requires_grad=requires_grad), limit)
    return [Sample.of(op, sample) for sample in samples]


def _gaps(samples: list[Sample]) -> list[Sample]:
    return [sample.noncontiguous() for sample in samples if sample.is_strided()]


def _with_gaps(samples: list[Sample]) -> list[Sample]:
    return samples + _gaps(samples)


def _run(outcome: Outcome, make: Callable[[], Iterable[Callable[[], bool]]]) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in make():
            try:
                outcome.random += case()
            except _Unsupported:
                continue
            except Exception as error:
                text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                outcome.refused = outcome.refused or (
                    isinstance(error, NotImplementedError) and "gapless" in text
                )
                outcome.failures.append(text[:300])
            finally:
                _settle()
            outcome.tried += 1
    return outcome


def _settle() -> None:
    """Leave no failure behind for the next sample."""
    try:
        torch.accelerator.synchronize()
    except RuntimeError:
        torch.accelerator.synchronize()


def _call(function: Callable[..., Any], sample: Sample, device: str) -> tuple[Any, Any]:
    """The result, and the arguments that it was called with."""
    arguments = _arguments(sample, device)
    torch.manual_seed(7)
    return function(arguments[0], *arguments[1], **arguments[2]), arguments


def _arguments(sample: Sample, device: str, shift: int = 0) -> Any:
    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return mirrored(tensor, device, shift)

    rest = [list(sample.args), sample.kwargs]
    return [
        mapped(sample.input, moved, device),
        *(rest if sample.on_host else mapped(rest, moved, device)),
    ]


def _reference(function: Callable[..., Any], sample: Sample) -> tuple[Any, Any]:
    try:
        return _call(function, sample, "cpu")
    except Exception as error:
        raise _Unsupported(str(error)) from error


def _is_random(
    function: Callable[..., Any],
    sample: Sample,
    expected: Any,
    differs: Callable[[Any, Any], None] | None = None,
) -> bool:
    """Whether the CPU, asked again with another seed, answers differently.

    The database seeds some operators itself at each call, which must not hide it. ``differs``
    raises where two answers differ; by default where any bit does.
    """
    differs = differs or compare_on_cpu
    seed_with = torch.manual_seed
    for seed in range(8, 16):  # where one number of few is drawn, two seeds may agree
        arguments = _arguments(sample, "cpu")
        seed_with(seed)
        with mock.patch.object(torch, "manual_seed", lambda _, seed=seed: seed_with(seed)):
            again = function(arguments[0], *arguments[1], **arguments[2])
        try:
            differs(again, expected)
        except (Mismatch, AssertionError):
            return True
    return False


def compare_closely(actual: Any, expected: Any) -> None:
    """Compare all but the last bits; raises AssertionError."""
    for mine, theirs in zip(tensors_of(actual), tensors_of(expected), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, equal_nan=True)


def compare_on_cpu(actual: Any, expected: Any) -> None:
    """:func:`compare` for two results of the CPU."""
    for mine, theirs in zip(tensors_of(actual), tensors_of(expected), strict=True):
        if mine.shape != theirs.shape or not torch.equal(
            mine.nan_to_num() if mine.is_floating_point() else mine,
            theirs.nan_to_num() if theirs.is_floating_point() else theirs,
        ):
            raise Mismatch("differs")


def _depends_on_memory(function: Callable[..., Any], sample: Sample, expected: Any) -> bool:
    """Whether the CPU's own bits change with where in memory its arguments lie (LAPACK)."""
    for shift in range(1, 16):
        torch.manual_seed(7)
        arguments = _arguments(sample, "cpu", shift)
        try:
            compare_on_cpu(function(arguments[0], *arguments[1], **arguments[2]), expected)
        except Mismatch:
            return True
    return False


def _matched(function: Callable[..., Any], sample: Sample, actual: Any, expected: Any) -> bool:
    """Compare; true where the CPU does not repeat itself, and only less could be compared.

    That is the distribution of random numbers, and all but the last bits where those depend on
    where in memory arguments lie.
    """
    try:
        compare(actual, expected)
        return False
    except Mismatch:
        if _depends_on_memory(function, sample, expected):
            try:
                compare_closely(actual, expected)
            except AssertionError:  # or random as well, such as attention with dropout
                if not _is_random(function, sample, expected, compare_closely):
                    raise
                compare(actual, expected, values=False)
        elif _is_random(function, sample, expected):
            compare(actual, expected, values=False)
        else:
            raise
    return True


def _forward(op: OpInfo, samples: list[Sample]) -> Iterator[Callable[[], bool]]:
    for sample in samples:

        def case(sample: Sample = sample) -> bool:
            expected, expected_arguments = _reference(op.op, sample)
            actual, arguments = _call(op.op, sample, DEVICE)
            _check_device(actual, arguments)
            if op.name in UNINITIALISED:
                compare(actual, expected, values=False)
                return True
            random = _matched(op.op, sample, actual, expected)
            # Some operators write to their arguments; those have to agree as well.
            if not random:
                _compare_arguments(arguments, expected_arguments)
            return random

        yield case


def _check_device(actual: Any, arguments: Any) -> None:
    """Results of tensors on the device are on the device."""
    given, got = tensors_of(arguments), tensors_of(actual)
    if not any(tensor.device.type == "gapless" for tensor in given):
        return
    if any(tensor.device.type != "gapless" for tensor in got):
        raise Mismatch("a result of tensors on the device is not on the device")


def _compare_arguments(actual: Any, expected: Any) -> None:
    compare(tensors_of(actual), tensors_of(expected), where="arguments")


def _poisoned(like: torch.Tensor) -> torch.Tensor:
    """A tensor of the same layout with other contents."""
    out = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype)
    return out.fill_(1)


def _out(op: OpInfo, samples: list[Sample]) -> Iterator[Callable[[], bool]]:
    """``out=`` of the right size, of no size, of a wrong size, and with other strides."""

    def unsized(like: torch.Tensor) -> torch.Tensor:
        return torch.empty(0, dtype=like.dtype)

    def wrong(like: torch.Tensor) -> torch.Tensor:
        return torch.ones(*like.shape, 2, dtype=like.dtype)

    def strided(like: torch.Tensor) -> torch.Tensor:
        return torch.ones(*like.shape, 2, dtype=like.dtype)[..., 0]

    for sample in samples:
        for make in (_poisoned, unsized, wrong, strided):

            def case(sample: Sample = sample, make: Any = make) -> bool:
                plain, _ = _reference(op.op, sample)
                if not tensors_of(plain):
                    raise _Unsupported("no tensor")
                outputs = mapped(plain, lambda t: make(t.detach()), "cpu")

                def with_out(*args: Any, **kwargs: Any) -> Any:
                    mine = mapped(outputs, lambda t: mirrored(t, device), device)
                    returned = op.op(*args, **kwargs, out=mine)
                    return [mine, returned]

                device = "cpu"
                expected, _ = _reference(with_out, sample)
                device = DEVICE
                actual, _ = _call(with_out, sample, DEVICE)
                if op.name in UNINITIALISED:
                    compare(actual, expected, values=False)
                    return True
                device = "cpu"
                return _matched(with_out, sample, actual, expected)

            yield case


def _inplace(op: OpInfo, samples: list[Sample]) -> Iterator[Callable[[], bool]]:
    for sample in samples:
        if sample.broadcasts_input or not isinstance(sample.input, (torch.Tensor, list)):
            continue

        def case(sample: Sample = sample) -> bool:
            expected, expected_arguments = _reference(op.inplace_variant, sample)
            actual, arguments = _call(op.inplace_variant, sample, DEVICE)
            random = _matched(op.inplace_variant, sample, actual, expected)
            if not random:
                _compare_arguments(arguments, expected_arguments)
            return random

        yield case


def _grad(op: OpInfo, samples: list[Sample]) -> Iterator[Callable[[], bool]]:
    for sample in samples:

        def with_grad(*args: Any, sample: Sample = sample, **kwargs: Any) -> Any:
            function = op.gradcheck_wrapper
            result = function(op.op, *args, **kwargs)
            result = sample.output_process_fn_grad(result)
            outputs = [t for t in tensors_of(result) if t.requires_grad]
            inputs = [t for t in tensors_of([list(args), kwargs]) if t.requires_grad]
            if not outputs or not inputs:
                raise _Unsupported("no gradient")
            cotangents = [_cotangent(t) for t in outputs]
            grads = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
            return [list(grads), [t.detach() for t in outputs]]

        def case(sample: Sample = sample, function: Any = with_grad) -> bool:
            expected, _ = _reference(function, sample)
            actual, _ = _call(function, sample, DEVICE)
            return _matched(function, sample, actual, expected)

        yield case


def _cotangent(output: torch.Tensor) -> torch.Tensor:
    count = output.numel()
    values = torch.linspace(0.5, 1.5, count, dtype=torch.float64).to(output.dtype)
    return values.reshape(output.shape).to(output.device)
