"""The port where worker processes meet for ``torch.distributed``."""

from __future__ import annotations

import errno
import socket

from gapless.errors import UsageError


def free_port(port: int | None) -> int | None:
    """The port, once it was seen to be free; 0 becomes one that is; None stays None.

    Raises:
        ValueError: no such port.
        UsageError: the port is in use, or may not be used.
    """
    if port is None:
        return None
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
        raise ValueError(f"a port is a whole number from 0 to 65535, got {port!r}")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            why = "in use" if error.errno == errno.EADDRINUSE else "not yours to use"
            raise UsageError(
                f"port {port} is {why}; choose another, or 0 for any that is free"
            ) from error
        return int(probe.getsockname()[1])
