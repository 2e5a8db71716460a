"""The process group backend ``gapless`` against gloo on the CPU: the same bits."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

BOTH = "cpu:gloo,gapless:gapless"
DTYPES = [torch.float32, torch.bfloat16, torch.int64]


def numbers(dtype: torch.dtype, *shape: int, salt: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * dist.get_rank() + salt)
    return (torch.randn(*shape, generator=generator) * 8).to(dtype)


def every_collective(device: str) -> dict[str, list]:
    """Results of each operation and dtype, as lists of numbers."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, list] = {}

    def note(name: str, *tensors: torch.Tensor) -> None:
        found[name] = [tensor.cpu().float().tolist() for tensor in tensors]

    for dtype in DTYPES:

        def new(*shape: int, salt: int = 0, dtype=dtype) -> torch.Tensor:
            return numbers(dtype, *shape, salt=salt).to(device)

        def empty(*shape: int, dtype=dtype) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        for root in range(size):
            tensor = new(3, 5)
            dist.broadcast(tensor, root)
            note(f"broadcast {root} {dtype}", tensor)
            tensor = new(3, 5)
            dist.reduce(tensor, root)
            if rank == root:
                note(f"reduce {root} {dtype}", tensor)
            parts = [empty(4) for _ in range(size)] if rank == root else None
            dist.gather(new(4), parts, dst=root)
            note(f"gather {root} {dtype}", *(parts or []))
            part = empty(4)
            chunks = [new(4, salt=i) for i in range(size)] if rank == root else None
            dist.scatter(part, chunks, src=root)
            note(f"scatter {root} {dtype}", part)
        for reduction in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX):
            tensor = new(1000)
            dist.all_reduce(tensor, op=reduction)
            note(f"all_reduce {reduction} {dtype}", tensor)
        parts = [empty(2, 3) for _ in range(size)]
        dist.all_gather(parts, new(2, 3))
        note(f"all_gather {dtype}", *parts)
        whole = empty(size * 2, 3)
        dist.all_gather_into_tensor(whole, new(2, 3))
        note(f"all_gather_into_tensor {dtype}", whole)
        part = empty(4)
        dist.reduce_scatter(part, [new(4, salt=i) for i in range(size)])
        note(f"reduce_scatter {dtype}", part)
        part = empty(4)
        dist.reduce_scatter_tensor(part, new(4 * size))
        note(f"reduce_scatter_tensor {dtype}", part)
        whole = empty(2 * size, 2)
        dist.all_to_all_single(whole, new(2 * size, 2))
        note(f"all_to_all_single {dtype}", whole)
        # Uneven: rank r sends r + 1 rows to each.
        whole = empty(sum(r + 1 for r in range(size)), 2)
        dist.all_to_all_single(
            whole,
            new(size * (rank + 1), 2),
            output_split_sizes=[r + 1 for r in range(size)],
            input_split_sizes=[rank + 1] * size,
        )
        note(f"all_to_all_single uneven {dtype}", whole)
        parts = [empty(3) for _ in range(size)]
        dist.all_to_all(parts, [new(3, salt=i) for i in range(size)])
        note(f"all_to_all {dtype}", *parts)
        # A ring of sends and receives, in both orders of the host's calls.
        received = empty(5)
        sent = dist.isend(new(5), (rank + 1) % size)
        dist.irecv(received, (rank - 1) % size).wait()
        sent.wait()
        note(f"ring {dtype}", received)
        if rank == 0:
            dist.send(new(5, salt=9), 1, tag=3)
        elif rank == 1:
            received = empty(5)
            dist.recv(received, 0, tag=3)
            note(f"send {dtype}", received)
        received = empty(5)
        operations = [
            dist.P2POp(dist.isend, new(5, salt=4), (rank + 1) % size),
            dist.P2POp(dist.irecv, received, (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        note(f"batch {dtype}", received)
        tensors = [new(3, salt=i) for i in range(4)]
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        note(f"coalesced all_reduce {dtype}", *tensors)
        wholes = [empty(2 * size) for _ in range(3)]
        with dist._coalescing_manager():
            for i, whole in enumerate(wholes):
                dist.all_gather_into_tensor(whole, new(2, salt=i))
        note(f"coalesced all_gather {dtype}", *wholes)
    return found


def every_collective_on_both() -> list[dict[str, list]]:
    return [every_collective("cpu"), every_collective("gapless")]


@pytest.mark.parametrize("size", [2, 3])
def test_every_collective_is_bit_equal_to_gloo(size):
    for expected, got in run_ranks(every_collective_on_both, size=size, backend=BOTH):
        assert len(expected) > 60
        assert got.keys() == expected.keys()
        for name in expected:
            assert got[name] == expected[name], name


def both_devices() -> list:
    on_host, on_device = torch.ones(3), torch.ones(3, device="gapless")
    dist.all_reduce(on_host)
    dist.all_reduce(on_device)
    dist.barrier()
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": dist.get_rank()})
    pair = [dist.get_rank() == 0 and "from 0"]
    dist.broadcast_object_list(pair, 0)
    half = dist.new_group([0, 1], backend="gapless")
    dist.all_reduce(on_device, group=half)
    return [on_host.tolist(), on_device.tolist(), objects, pair]


def test_one_group_serves_host_and_device():
    for result in run_ranks(both_devices, backend=BOTH):
        assert result == [[2.0] * 3, [4.0] * 3, [{"rank": 0}, {"rank": 1}], ["from 0"]]


def host_goes_on() -> list:
    """Rank 1 comes late, and only because rank 0's host got past the collective."""
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.full((4,), float(dist.get_rank() + 1), device="gapless")
    if dist.get_rank() == 1:
        store.wait(["rank 0 is past"])
    dist.all_reduce(tensor)
    tensor.mul_(10)  # in stream order after it
    later = dist.all_reduce(tensor, async_op=True)
    before = later.is_completed()
    store.set("rank 0 is past", "")
    later.wait()
    torch.accelerator.synchronize()
    return [before, later.is_completed(), tensor.tolist()]


def test_the_host_never_waits_for_a_collective():
    first, second = run_ranks(host_goes_on)
    assert first == [False, True, [60.0] * 4]
    assert second[1:] == [True, [60.0] * 4]


def inputs_in_flight() -> list:
    total = []
    for repeat in range(20):
        block = torch.full((200, 200), 1e-3, device="gapless")
        for _ in range(10):
            block = block @ block
        tensor = block * 0 + dist.get_rank() + repeat
        work = dist.all_reduce(tensor, async_op=True)
        other = torch.ones(100, device="gapless") @ torch.ones(100, device="gapless")
        work.wait()
        total.append((tensor + other).sum() / tensor.numel())
        del tensor, block  # memory in flight is not handed out again
        torch.zeros(200, 200, device="gapless").fill_(99)
    return [value.item() for value in total]


def test_operands_may_still_be_computed_and_forgotten():
    for result in run_ranks(inputs_in_flight):
        assert result == [2.0 * repeat + 1 + 100 for repeat in range(20)]


def futures() -> list:
    tensor = torch.ones(4, device="gapless")
    future = dist.all_reduce(tensor, async_op=True).get_future()
    scaled = future.then(lambda done: done.value()[0] * 3)
    scaled.wait()
    return [scaled.value().tolist(), future.done()]


def test_futures_follow_the_stream():
    assert run_ranks(futures) == [[[6.0] * 4, True]] * 2


def many_in_flight() -> list:
    """Sends before receives on both sides, and receives in the reverse order of the sends."""
    other = 1 - dist.get_rank()
    sends = [
        dist.isend(torch.full((3,), float(tag), device="gapless"), other, tag=tag)
        for tag in range(20)
    ]
    received = {tag: torch.zeros(3, device="gapless") for tag in reversed(range(20))}
    waits = [dist.irecv(tensor, other, tag=tag) for tag, tensor in received.items()]
    for work in waits + sends:
        work.wait()
    anyone = torch.zeros(1, device="gapless")
    work = dist.isend(torch.full((1,), 5.0, device="gapless"), other)
    source = dist.recv(anyone)
    work.wait()
    return [[tensor.tolist()[0] for tensor in received.values()], source, anyone.item()]


def test_sends_and_receives_do_not_wait_for_each_other():
    first, second = run_ranks(many_in_flight)
    assert first == [[float(tag) for tag in reversed(range(20))], 1, 5.0]
    assert second == [[float(tag) for tag in reversed(range(20))], 0, 5.0]


def lonely_collective() -> list[str]:
    texts = []
    tensor = torch.ones(4, device="gapless")
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)  # nobody else comes
        work.wait()
        try:
            tensor.cpu()
        except torch.AcceleratorError as error:
            texts.append(str(error))
        texts.append(str(work.is_completed()))
        texts.append(type(work.exception()).__name__)
        try:
            torch.accelerator.synchronize()  # the communication stream's part of it
        except torch.AcceleratorError as error:
            texts.append(str(error))
        assert torch.ones(2, device="gapless").sum().item() == 2  # the device goes on
    else:
        dist.distributed_c10d._get_default_store().wait(["over"], timedelta(seconds=60))
    if dist.get_rank() == 0:
        dist.distributed_c10d._get_default_store().set("over", "")
    return texts


def test_a_timeout_is_told_with_the_operations_name():
    texts, _ = run_ranks(lonely_collective, timeout_s=3)
    assert "c10d::allreduce failed on gapless:0" in texts[0]
    assert "imed out" in texts[0]
    assert "float32[4]" in texts[0].replace(" ", "").lower() or "Float[4]" in texts[0]
    assert texts[1] == "True"


def wait_with_timeout() -> str:
    text = ""
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(4, device="gapless")
    if dist.get_rank() == 1:
        store.wait(["told"])
    work = dist.all_reduce(tensor, async_op=True)
    if dist.get_rank() == 0:
        try:
            work.wait(timedelta(milliseconds=200))
        except dist.DistBackendError as error:
            text = str(error)
        store.set("told", "")
    work.wait()
    assert tensor.tolist() == [2.0] * 4
    return text


def test_a_wait_with_a_timeout_holds_the_host_no_longer():
    text, _ = run_ranks(wait_with_timeout)
    assert "did not end within 200 ms" in text


def peer_goes() -> str:
    tensor = torch.ones(4, device="gapless")
    dist.all_reduce(tensor)
    tensor.cpu()
    if dist.get_rank() == 1:
        return "gone"
    dist.all_reduce(tensor)
    try:
        torch.accelerator.synchronize()
    except torch.AcceleratorError as error:
        return str(error)
    return "no error"


def test_a_peer_that_goes_is_told_at_the_next_synchronization():
    text, _ = run_ranks(peer_goes)
    assert "c10d::allreduce failed on gapless:0" in text
    assert "losed by peer" in text or "reset by peer" in text


def refusals() -> list[str]:
    texts = []

    def refused(call) -> None:
        try:
            call()
        except (RuntimeError, ValueError, TypeError) as error:
            texts.append(str(error))

    tensor = torch.ones(4, 4, device="gapless")
    refused(lambda: dist.all_reduce(tensor[:, :2]))
    refused(lambda: dist.all_reduce(tensor, op=dist.ReduceOp.AVG))
    refused(lambda: dist.all_reduce(tensor.to(torch.int16)))
    refused(lambda: dist.all_gather_into_tensor(torch.ones(3, device="gapless"), tensor))
    refused(lambda: dist.all_gather([torch.ones(4, 4, device="gapless")], tensor))
    graph = torch.accelerator.Graph()
    with torch.Stream("gapless"), graph:
        refused(lambda: dist.all_reduce(tensor))
    dist.all_reduce(tensor)  # still whole
    assert tensor.sum().item() == 32
    return texts


def test_bad_arguments_are_refused_at_the_call():
    patterns = [
        "is not dense",
        "AVG is not offered; use SUM",
        "dtype Short is not carried",
        "does not hold 2 times",
        "has 1 tensors; the group has 2 ranks",
        "cannot be captured in a graph",
    ]
    for texts in run_ranks(refusals):
        assert len(texts) == len(patterns), texts
        for text, pattern in zip(texts, patterns, strict=True):
            assert pattern in text


def train(device: str) -> list:
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 4)
    ).to(device)
    model = DistributedDataParallel(model, bucket_cap_mb=0.005)  # several buckets
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(8):
        inputs = numbers(torch.float32, 6, 20, salt=step).to(device)
        target = numbers(torch.float32, 6, 4, salt=step + 50).to(device)
        optimizer.zero_grad()
        if step == 5:
            with model.no_sync():
                torch.nn.functional.mse_loss(model(inputs), target).backward()
        loss = torch.nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [
        [loss.item() for loss in losses],
        [parameter.detach().flatten().tolist() for parameter in model.parameters()],
    ]


def train_on_both() -> list:
    return [train("cpu"), train("gapless")]


def test_ddp_trains_to_the_same_weights_as_gloo_on_the_cpu(monkeypatch):
    monkeypatch.setenv("GAPLESS_DEVICE_CORES", "1")  # CPU kernels split sums by thread
    results = run_ranks(train_on_both, backend=BOTH)
    for expected, got in results:
        assert got == expected
    assert results[0][1][1] == results[1][1][1]
