"""``torch.distributed`` on the device: the process group backend ``gapless``.

Importing torch registers it. ``init_process_group("gapless")`` serves tensors of the device,
``init_process_group("cpu:gloo,gapless:gapless")`` those of the host too.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gapless import _C

BACKEND = "gapless"


def create_backend(options: Any, backend_options: Any) -> Any:
    """Make one group's backend; ``torch.distributed`` calls this.

    Args:
        options: the group's store, rank, size and timeout.
        backend_options: ``pg_options`` of the caller; the backend has none.

    Raises:
        ValueError: ``pg_options`` were given.
    """
    if backend_options is not None:
        raise ValueError(
            f"pg_options={backend_options!r}: the backend {BACKEND} has no options; leave them out"
        )
    from torch._C._distributed_c10d import (
        PrefixStore,
    )  # absent where torch has no torch.distributed

    timeout: timedelta = options.timeout
    # Its own keys in the store: the group may have a gloo backend for the host's tensors as well.
    transport = dist.ProcessGroupGloo(
        PrefixStore("gapless/", options.store),
        options.group_rank,
        options.group_size,
        timeout=timeout,
    )
    return _C.distributed_backend(transport, options.group_rank, options.group_size, timeout)


def register() -> None:
    """Tell ``torch.distributed`` of the backend, where torch was built with it and with gloo."""
    if dist.is_available() and dist.is_gloo_available():
        dist.Backend.register_backend(
            BACKEND,
            create_backend,
            extended_api=True,
            devices=[torch._C._get_privateuse1_backend_name()],
        )
