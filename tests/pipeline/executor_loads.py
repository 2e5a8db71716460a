"""Steps for worker processes, found there by their names."""

import os
import signal

import torch

from gapless.pipeline import CapturedStep


def model(rank):
    torch.manual_seed(rank)
    weight = torch.randn(8, 8)
    return lambda x: torch.softmax(x @ weight.to(x.device), -1)


def function(rank):
    """Any function: a weight on the device, and results in a dict."""
    torch.manual_seed(rank)
    weight = torch.randn(8, 8).to("gapless")
    return lambda x: {"probabilities": torch.softmax(x @ weight, -1), "rank": rank}


def captured(rank):
    torch.manual_seed(rank)
    weight = torch.randn(8, 8).to("gapless")
    return CapturedStep(
        lambda x, index: (torch.softmax(x @ weight, -1), index + rank),
        [torch.zeros(3, 8), torch.zeros(1, dtype=torch.int64)],
    )


def on_cpu(rank):
    return CapturedStep(lambda x: x + rank, [torch.zeros(2)], prepare=lambda x: x.mul_(2))


def counting(rank):
    """The next number is made on the device of the last one."""
    state = torch.zeros(1, dtype=torch.int64, device="gapless")

    def step():
        state.add_(1)
        return state

    return CapturedStep(step, reset=state.zero_)


def preparing(rank):
    return CapturedStep(lambda x: x * 2, [torch.zeros(2)], prepare=lambda x: x.add_(rank))


def captured_large(rank):
    return CapturedStep(lambda x: x + rank, [torch.zeros(300_000)])


def captured_differently(rank):
    return CapturedStep(lambda x: x * 2, [torch.zeros(2 + rank)])


def dying_prepare(rank):
    def prepare(x):
        if rank == 1 and x[0] == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    return CapturedStep(lambda x: x + 1, [torch.zeros(2)], prepare=prepare)


def echo(rank):
    return lambda x: x


def failing_load(rank):
    if rank == 1:
        raise ValueError("no weights here")
    return echo(rank)


def dying_load(rank):
    if rank == 1:
        os._exit(7)
    return echo(rank)


def not_a_step(rank):
    return 3


def failing_step(rank):
    def step(x):
        if rank == 1 and x[0] == 2:
            raise ValueError("two is not welcome")
        return x

    return step


def failing_prepare(rank):
    def prepare(x):
        if rank == 1 and x[0] == 2:
            raise ValueError("two is not welcome")

    return CapturedStep(lambda x: x + 1, [torch.zeros(2)], prepare=prepare)


def failing_on_device(rank):
    """There is no entry 7, which the device finds out."""
    table = torch.arange(3, device="gapless")
    return lambda index: table[index]


def failing_on_device_captured(rank):
    table = torch.arange(12.0, device="gapless").reshape(3, 4)
    return CapturedStep(
        lambda index: torch.nn.functional.embedding(index, table),
        [torch.zeros(1, dtype=torch.int64)],
    )


def dying_step(rank):
    def step(x):
        if rank == 1 and x[0] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    return step


def leaving_step(rank):
    def step(x):
        if rank == 1 and x[0] == 2:
            os._exit(0)
        return x

    return step


def waiting_for_ever(rank):
    """Rank 0 never answers; what becomes of it is up to the others."""

    def step(x):
        while rank == 0:
            signal.pause()
        if x[0] == 1:
            raise ValueError("one is not welcome")
        return x

    return step


def never_loading(rank):
    signal.pause()


def deaf(rank):
    def step(x):
        while True:
            signal.pause()

    return step


def in_a_group(rank):
    import torch.distributed as dist

    dist.init_process_group("gapless")

    def step(x):
        dist.all_reduce(x)
        return x

    return step


def environment_of(name):
    return os.environ.get(name)


def fail_if(rank_text):
    if os.environ.get("RANK") == rank_text:
        raise KeyError("asked to fail")
