"""Run one function in several processes that form a process group."""

import os
import socket
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def _main(
    rank: int, size: int, port: int, backend: str, timeout_s: float, function, arguments, results
) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            backend, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
        )
        result = function(*arguments)
        results.put((rank, "", result))
        results.close()
        results.join_thread()
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        results.put((rank, traceback.format_exc(), None))
        results.close()
        results.join_thread()
        sys.stdout.flush()
        os._exit(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(
    function: Callable[..., Any],
    *arguments: Any,
    size: int = 2,
    backend: str = "gapless",
    timeout_s: float = 60,
) -> list[Any]:
    """What ``function(*arguments)`` returned in each rank; numbers, strings and lists only.

    Raises:
        AssertionError: a rank raised, or did not end within 150 s.
    """
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    port = _free_port()
    processes = [
        context.Process(
            target=_main,
            args=(rank, size, port, backend, timeout_s, function, arguments, results),
        )
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    by_rank: dict[int, Any] = {}
    try:
        for _ in processes:
            rank, error, result = results.get(timeout=150)
            assert not error, f"rank {rank}:\n{error}"
            by_rank[rank] = result
        for process in processes:
            process.join(30)
            assert process.exitcode == 0, f"a rank left with {process.exitcode}"
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    return [by_rank[rank] for rank in range(size)]
