"""Varying sizes served by few fixed shapes: arguments are padded up to the nearest bucket.

Only where the caller says so: whether what is padded changes the rest of the results is a property
of the function, which nobody else can know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from torch.utils import _pytree as pytree

from gapless.compile import compiler_thread
from gapless.compile.backend import gapless_backend
from gapless.compile.mode import CompileMode, compile_mode
from gapless.errors import UsageError

Place = tuple[int | str, int]


@dataclass(frozen=True)
class Paddable:
    """A dimension that arguments and results share, and that may be padded.

    Attributes:
        sizes: its buckets, ascending.
        arguments: the arguments that have it, by position or name, and which of their dimensions it
            is: ``{0: 1, "mask": 1}``.
        results: the results that have it, by their place in what the function returns, flattened,
            and which of their dimensions it is; these are cut down to the size that was asked for.
        fill: what arguments are padded with; by name or position where it is not the same for all.
    """

    sizes: Sequence[int]
    arguments: Mapping[int | str, int]
    results: Mapping[int, int]
    fill: float | Mapping[int | str, float] = 0


@dataclass(frozen=True)
class BucketStatistics:
    """Counts since the function was made.

    Attributes:
        calls: by the bucket that served them.
        padded_elements: of the paddable dimensions, that were computed and cut away.
        nearest: calls that a larger bucket served while their own was being compiled.
        exact: calls beyond the largest bucket, served by a program for their very shape.
    """

    calls: Mapping[tuple[int, ...], int]
    padded_elements: int
    nearest: int
    exact: int


class Bucketed:
    """Compiles a function, and calls it at the sizes of its buckets.

    A size beyond the largest bucket is not padded: it gets a program of its own, as every size of a
    dimension does that was not declared.

    Args:
        function: takes and returns tensors (also in tuples, lists and dicts, where results are).
        paddable: the dimensions, by name.
        mode: ``background``, ``wait`` or ``never``; by default ``GAPLESS_COMPILE``. In the
            background, the nearest larger bucket that is compiled serves until the right one is.

    Raises:
        UsageError: a bucket's sizes do not ascend, or nothing is declared to have the dimension.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        paddable: Mapping[str, Paddable],
        mode: str | None = None,
    ) -> None:
        for name, dimension in paddable.items():
            sizes = list(dimension.sizes)
            if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1:
                raise UsageError(f"buckets {sizes} of {name!r}: give sizes from 1 up, ascending")
            if not dimension.arguments:
                raise UsageError(f"{name!r}: say which arguments have this dimension (arguments=)")
        self._paddable = dict(paddable)
        self._mode = mode
        self._function = torch.compile(
            function,
            backend=gapless_backend,
            dynamic=False,
            options=None if mode is None else {"mode": mode},
        )
        self._being_compiled: dict[tuple[int, ...], list[Future[Any]]] = {}
        self._calls: dict[tuple[int, ...], int] = {}
        self._padded = self._nearest = self._exact = 0

    @property
    def statistics(self) -> BucketStatistics:
        """Counts so far."""
        return BucketStatistics(dict(self._calls), self._padded, self._nearest, self._exact)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Pad, call, and cut the results down. Never waits for the device.

        Raises:
            UsageError: arguments disagree about a size, or lack the dimension.
        """
        wanted = tuple(
            self._size_of(name, dimension, args, kwargs)
            for name, dimension in self._paddable.items()
        )
        bucket = tuple(
            _nearest(dimension.sizes, size)
            for dimension, size in zip(self._paddable.values(), wanted, strict=True)
        )
        served = self._ready(bucket)
        self._nearest += served != bucket
        self._exact += any(
            size > dimension.sizes[-1]
            for dimension, size in zip(self._paddable.values(), wanted, strict=True)
        )
        with compiler_thread.collecting() as unfinished:
            results = self._call(args, kwargs, wanted, served)
        self._being_compiled[served] = unfinished
        self._calls[served] = self._calls.get(served, 0) + 1
        self._padded += sum(has - asked for has, asked in zip(served, wanted, strict=True))
        return results

    def warm(self, *args: Any, **kwargs: Any) -> None:
        """Begin to compile every bucket, with these arguments' other sizes.

        The function is called once per bucket, on padded or cut arguments: what it writes to its
        arguments is lost. Use ``wait_until_compiled`` to wait.
        """
        sizes: list[tuple[int, ...]] = [()]
        for dimension in self._paddable.values():
            sizes = [(*before, size) for before in sizes for size in dimension.sizes]
        for bucket in sizes:
            values = _by_place(args, kwargs)
            for dimension, size in zip(self._paddable.values(), bucket, strict=True):
                for place, dim in dimension.arguments.items():
                    has = values[place].shape[dim]
                    values[place] = values[place].narrow(dim, 0, min(size, has))
            self(
                *(values[place] for place in range(len(args))),
                **{place: values[place] for place in kwargs},
            )

    def _call(
        self, args: Any, kwargs: Any, wanted: tuple[int, ...], served: tuple[int, ...]
    ) -> Any:
        values = _by_place(args, kwargs)
        for dimension, size in zip(self._paddable.values(), served, strict=True):
            for place, dim in dimension.arguments.items():
                fill = dimension.fill
                fill = fill.get(place, 0) if isinstance(fill, Mapping) else fill
                values[place] = _padded(values[place], dim, size, fill)
        returned = self._function(
            *(values[place] for place in range(len(args))),
            **{place: values[place] for place in kwargs},
        )
        if wanted == served:
            return returned
        leaves, tree = pytree.tree_flatten(returned)
        for dimension, size in zip(self._paddable.values(), wanted, strict=True):
            for place, dim in dimension.results.items():
                if place >= len(leaves):
                    raise UsageError(
                        f"result {place} was declared and the function returns {len(leaves)}"
                    )
                leaves[place] = leaves[place].narrow(dim, 0, size)
        return pytree.tree_unflatten(leaves, tree)

    def _ready(self, bucket: tuple[int, ...]) -> tuple[int, ...]:
        """The bucket itself, or the nearest larger one that is compiled while this one is not."""
        mode = CompileMode(self._mode) if self._mode else compile_mode()
        unfinished = self._being_compiled.get(bucket)
        if mode is not CompileMode.BACKGROUND or unfinished is None:
            return bucket  # the first call has to begin the compiling
        if all(each.done() for each in unfinished):
            return bucket
        larger = [
            each
            for each, futures in self._being_compiled.items()
            if all(has >= needs for has, needs in zip(each, bucket, strict=True))
            and all(future.done() for future in futures)
        ]
        return min(larger, key=sum, default=bucket)

    def _size_of(self, name: str, dimension: Paddable, args: Any, kwargs: Any) -> int:
        size: int | None = None
        for place, dim in dimension.arguments.items():
            try:
                value = args[place] if isinstance(place, int) else kwargs[place]
            except (IndexError, KeyError):
                raise UsageError(f"{name!r}: there is no argument {place!r} in this call") from None
            if not isinstance(value, torch.Tensor) or not -value.dim() <= dim < value.dim():
                what = (
                    f"has shape {tuple(value.shape)}"
                    if isinstance(value, torch.Tensor)
                    else f"is a {type(value).__name__}"
                )
                raise UsageError(f"{name!r} is dimension {dim} of argument {place!r}, which {what}")
            if size is not None and value.shape[dim] != size:
                raise UsageError(
                    f"{name!r}: argument {place!r} has {value.shape[dim]} and another one {size}"
                )
            size = value.shape[dim]
        assert size is not None
        return size


def _by_place(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int | str, Any]:
    values: dict[int | str, Any] = dict(enumerate(args))
    values.update(kwargs)
    return values


def _nearest(sizes: Sequence[int], size: int) -> int:
    return next((each for each in sizes if each >= size), size)


def _padded(value: torch.Tensor, dim: int, size: int, fill: float) -> torch.Tensor:
    missing = size - value.shape[dim]
    if missing <= 0:
        return value
    after = value.dim() - 1 - dim % value.dim()
    return pad(value, [0] * (2 * after) + [0, missing], value=fill)
