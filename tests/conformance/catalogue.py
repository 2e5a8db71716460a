"""The operators that are checked: PyTorch's own databases, by a name that is unique."""

from functools import cache

import torch
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.opinfo.core import OpInfo

#: What a run checks unless it is told otherwise.
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
MORE_DTYPES = (
    torch.float64,
    torch.float16,
    torch.complex128,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


@cache
def operators() -> dict[str, OpInfo]:
    """Every operator by name; variants of one operator have the variant's name after a dot."""
    found: dict[str, OpInfo] = {}
    for op in database.op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if name in found:
            raise ValueError(f"the operator database has {name} twice")
        found[name] = op
    return found


def dtypes_of(op: OpInfo, among: tuple[torch.dtype, ...]) -> list[torch.dtype]:
    """Those of the dtypes that the CPU supports."""
    supported = op.supported_dtypes("cpu")
    return [dtype for dtype in among if dtype in supported]
