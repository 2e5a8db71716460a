"""What a piece of work dispatches, and which of it would make the host wait for the device.

Run on the CPU it needs no accelerator: an operator that reads a value back, or whose output's
shape depends on values, is a wait on any asynchronous device.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_SYNC_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_VIEWS_BY_NAME = frozenset({"aten::_unsafe_view"})  # a view whose schema does not say so
_SYNC_OPS = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::equal"})


@dataclass(frozen=True)
class AuditReport:
    """Operators dispatched, by schema name with overload; views do no work on the device."""

    kernels: Counter[str]
    views: Counter[str]
    host_syncs: Counter[str]

    @property
    def kernel_count(self) -> int:
        """Operators that do work, which is what a graph replays."""
        return sum(self.kernels.values())

    @property
    def view_count(self) -> int:
        """Operators that only make a view, on the host."""
        return sum(self.views.values())


class OpAudit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager that counts operators; read ``report()`` after it.

    It sees composite operators already decomposed, as a backend does.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kernels: Counter[str] = Counter()
        self._views: Counter[str] = Counter()
        self._host_syncs: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operator and run it."""
        if func._can_decompose():  # in inference mode composite operators arrive whole
            with self:
                decomposed = func.decompose(*args, **(kwargs or {}))
            if decomposed is not NotImplemented:
                return decomposed
        name = f"{func._schema.name}.{func._overloadname}"
        if func.is_view or func._schema.name in _VIEWS_BY_NAME:
            self._views[name] += 1
        else:
            self._kernels[name] += 1
        result = func(*args, **(kwargs or {}))
        if self._waits(func, args, kwargs or {}, result):
            self._host_syncs[name] += 1
        return result

    def report(self) -> AuditReport:
        """What has been counted so far."""
        return AuditReport(Counter(self._kernels), Counter(self._views), Counter(self._host_syncs))

    @staticmethod
    def _waits(func: Any, args: Any, kwargs: Any, result: Any) -> bool:
        if func._schema.name in _SYNC_OPS or any(tag in func.tags for tag in _SYNC_TAGS):
            return True
        if func._schema.name == "aten::index" and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            return True  # a boolean index selects as many elements as it holds
        tensors = [
            value
            for value in (*args, *kwargs.values(), result)
            if isinstance(value, torch.Tensor) and value.dim() > 0
        ]
        return len({tensor.device.type for tensor in tensors}) > 1
