import gc
import os
import random
from pathlib import Path

import pytest
import torch
from child import run


def test_freed_memory_is_used_again():
    torch.accelerator.synchronize()
    torch.gapless.empty_cache()
    for _ in range(3):
        torch.empty(10_000, device="gapless").add_(1)
    before = torch.gapless.memory_stats()["num_device_alloc"]
    for _ in range(200):
        torch.empty(10_000, device="gapless").add_(1)
    assert torch.gapless.memory_stats()["num_device_alloc"] == before


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def settle() -> None:
    """Free what earlier tests left: their cycles, and what their queued work still holds."""
    gc.collect()
    torch.accelerator.synchronize()


def test_statistics_and_empty_cache():
    settle()
    torch.gapless.empty_cache()
    start = torch.gapless.memory_allocated()
    tensor = torch.empty(1 << 20, device="gapless")
    assert torch.gapless.memory_allocated() - start == 4 << 20
    assert torch.gapless.memory_reserved() >= torch.gapless.memory_allocated()
    assert torch.gapless.max_memory_allocated() >= 4 << 20
    reserved = torch.gapless.memory_reserved()
    del tensor
    assert torch.gapless.memory_allocated() == start
    torch.gapless.empty_cache()
    assert torch.gapless.memory_reserved() <= reserved - (4 << 20)
    free_bytes, total_bytes = torch.gapless.mem_get_info()
    assert 0 < free_bytes <= total_bytes


def test_memory_freed_under_queued_work_is_not_handed_out_too_early():
    for _ in range(50):
        source = torch.full((2000,), 7.0, device="gapless")
        result = source + source
        del source
        torch.full((2000,), -1.0, device="gapless")  # may take the same block, later in order
        assert result.sum().item() == 28_000


def test_another_streams_use_delays_reuse():
    side = torch.Stream("gapless")
    block = torch.full((300, 300), 1e-3, device="gapless")
    for _ in range(30):
        source = torch.full((5000,), 3.0, device="gapless")
        ready = torch.accelerator.current_stream().record_event()
        with side:
            side.wait_event(ready)
            for _ in range(5):
                block = block @ block
            result = source * 2
        del source
        overwritten = torch.full((5000,), -5.0, device="gapless")
        side.synchronize()
        assert result.sum().item() == 30_000
        del overwritten


def test_out_of_memory_says_what_was_wanted_and_what_there_is():
    with pytest.raises(
        torch.OutOfMemoryError, match=r"wanted .*MiB, free .*MiB, reserved .*MiB.*limit .*MiB"
    ):
        torch.empty(1 << 50, device="gapless")
    assert torch.ones(3, device="gapless").sum().item() == 3


def test_a_limit_of_ones_own():
    done = run(
        """
        import torch
        torch.empty(10 << 20, dtype=torch.uint8, device="gapless")
        try:
            torch.empty(64 << 20, dtype=torch.uint8, device="gapless")
        except torch.OutOfMemoryError as error:
            print(error)
        print(torch.gapless.mem_get_info()[1] >> 20)
        """,
        GAPLESS_MEMORY_LIMIT="32M",
    )
    assert "wanted 64.00 MiB" in done.stdout, done.stderr
    assert "limit 32.00 MiB (GAPLESS_MEMORY_LIMIT)" in done.stdout
    assert done.stdout.endswith("32\n")


def test_a_limit_that_is_no_number():
    done = run("import torch; torch.empty(1, device='gapless')", GAPLESS_MEMORY_LIMIT="lots")
    assert "GAPLESS_MEMORY_LIMIT=lots: give bytes" in done.stderr


def test_pinned_memory_is_not_rewritten_before_its_copy_ran():
    block = torch.full((300, 300), 1e-3, device="gapless")
    for value in range(30):
        for _ in range(5):
            block = block @ block
        pinned = torch.full((1000,), float(value), pin_memory=True)
        moved = pinned.to("gapless", non_blocking=True)
        del pinned
        torch.full((1000,), -1.0, pin_memory=True)  # must not take the buffer in use
        assert moved.sum().item() == 1000 * value


def test_pinned_memory_is_known():
    pinned = torch.empty(10, pin_memory=True)
    assert pinned.is_pinned()
    assert pinned[3:].is_pinned()
    assert not torch.empty(10).is_pinned()
    assert torch.empty(10).pin_memory().is_pinned()


def test_running_out_of_memory_leaves_the_graphs_memory_alone():
    done = run(
        """
        import torch
        x = torch.ones(1 << 20, device="gapless")
        graph = torch.accelerator.Graph()
        with graph:
            between = x * 2
            y = between + 1
            del between
        torch.accelerator.synchronize()
        try:
            torch.empty(1 << 40, device="gapless")
        except torch.OutOfMemoryError:
            pass
        others = [torch.zeros(1 << 20, device="gapless") for _ in range(8)]
        for _ in range(20):
            graph.replay()
        print(y.sum().item() / (1 << 20), sum(o.sum().item() for o in others))
        """
    )
    assert done.stdout == "3.0 0.0\n", done.stderr


def test_growing_a_tensor_keeps_what_queued_work_will_have_written():
    block = torch.full((600, 600), 1e-3, device="gapless")
    x = torch.zeros(4, device="gapless")
    for _ in range(20):
        block = block @ block  # the writes below are still queued when the tensor grows
    x.add_(3)
    x.resize_(2_000_000)
    assert x[:4].tolist() == [3.0] * 4


FIGURES = ("current", "peak", "allocated", "freed")
POOLS = ("all", "large_pool", "small_pool")
COUNTED = ("allocation", "segment", "active", "inactive_split")
SUMMED = tuple(
    f"{name}_bytes" for name in ("allocated", "reserved", "active", "inactive_split", "requested")
)


def test_statistics_have_all_the_keys_and_add_up():
    torch.gapless.empty_cache()
    torch.gapless.reset_peak_memory_stats()
    torch.gapless.reset_accumulated_memory_stats()
    kept = [torch.empty(size, device="gapless") for size in (10, 1000, 1 << 20, 3 << 20)]
    del kept[1]
    stats = torch.gapless.memory_stats()
    for name in (*COUNTED, *SUMMED):
        for figure in FIGURES:
            total, large, small = (stats[f"{name}.{pool}.{figure}"] for pool in POOLS)
            if figure != "peak":
                assert total == large + small, (name, figure)
            else:
                assert max(large, small) <= total <= large + small, name
        for pool in POOLS:
            assert stats[f"{name}.{pool}.peak"] >= stats[f"{name}.{pool}.current"] >= 0
    assert stats["reserved_bytes.all.current"] >= (
        stats["active_bytes.all.current"] + stats["inactive_split_bytes.all.current"]
    )
    assert stats["inactive_split.all.current"] >= 1
    for name in ("num_alloc_retries", "num_ooms", "num_sync_all_streams"):
        assert stats[name] == 0
    assert stats["num_device_alloc"] >= 2
    assert stats["num_device_free"] == 0


def test_inactive_parts_vanish_with_their_segment():
    torch.gapless.empty_cache()
    before = torch.gapless.memory_stats()["inactive_split_bytes.large_pool.current"]
    halves = torch.empty(3 << 20, dtype=torch.uint8, device="gapless")
    now = torch.gapless.memory_stats()["inactive_split_bytes.large_pool.current"]
    assert now - before == 1 << 20  # of a segment of 4 MiB
    del halves
    assert torch.gapless.memory_stats()["inactive_split_bytes.large_pool.current"] == before


def test_memory_of_graphs_that_are_gone_serves_others():
    x = torch.ones(1000, device="gapless")

    def captured() -> torch.Tensor:
        graph = torch.accelerator.Graph()
        graph.capture_begin()
        out, other = x * 2, x * 3
        graph.capture_end()
        graph.replay()
        del other
        return out  # outlives the graph

    for _ in range(3):
        captured()
    torch.accelerator.synchronize()
    before = torch.gapless.memory_stats()["segment.all.current"]
    for _ in range(100):
        assert captured().sum().item() == 2000
    assert torch.gapless.memory_stats()["segment.all.current"] <= before + 2


def test_peaks_stay_until_they_are_reset():
    settle()
    torch.gapless.reset_peak_memory_stats()
    start = torch.gapless.memory_allocated()
    for _ in range(3):
        torch.empty(8 << 20, dtype=torch.uint8, device="gapless")
    assert torch.gapless.memory_allocated() == start
    assert torch.gapless.max_memory_allocated() >= start + (8 << 20)
    torch.gapless.reset_peak_memory_stats()
    assert torch.gapless.max_memory_allocated() == start


def test_running_out_and_trying_again_is_counted():
    before = torch.gapless.memory_stats()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, device="gapless")
    after = torch.gapless.memory_stats()
    for name in ("num_alloc_retries", "num_ooms", "num_sync_all_streams"):
        assert after[name] == before[name] + 1


def test_a_full_device_waits_for_what_is_in_use_before_it_refuses():
    done = run(
        """
        import torch
        side = torch.Stream("gapless")
        block = torch.full((300, 300), 1e-3, device="gapless")
        torch.accelerator.synchronize()
        for value in range(20):
            big = torch.full((20 << 18,), float(value), device="gapless")
            side.wait_stream(torch.accelerator.current_stream())
            with side:
                for _ in range(3):
                    block = block @ block
                total = big[-5:].sum()
            del big  # the side stream still reads it, and there is no room for another one
            with side:
                assert total.item() == 5 * value
        print(torch.gapless.memory_stats()["num_ooms"])
        """,
        GAPLESS_MEMORY_LIMIT="32M",
    )
    assert done.stdout == "0\n", done.stderr


def test_memory_is_never_handed_out_while_any_stream_may_touch_it():
    """Many streams write numbers of their own into memory that is freed and taken all the time."""
    streams = [torch.Stream("gapless") for _ in range(6)]
    choose = random.Random(1)
    kept: list[tuple[torch.Tensor, int]] = []
    for number in range(1500):
        with choose.choice(streams):
            made = torch.full((choose.choice((64, 500, 3000)),), number, device="gapless")
            made.add_(1)
        user = choose.choice(streams)
        user.wait_stream(choose.choice(streams))
        for stream in streams:
            user.wait_stream(stream)
        with user:
            copy = made * 1
            kept.append((copy, number + 1))
        del made
        if len(kept) > 12:
            tensor, expected = kept.pop(choose.randrange(len(kept)))
            if number % 10 == 0:
                torch.accelerator.synchronize()
                assert tensor.eq(expected).all().item(), number
    torch.accelerator.synchronize()
    assert all(tensor.eq(expected).all().item() for tensor, expected in kept)


def test_pinned_memory_is_never_handed_out_while_any_stream_may_touch_it():
    streams = [torch.Stream("gapless") for _ in range(4)]
    block = torch.full((200, 200), 1e-3, device="gapless")
    torch.accelerator.synchronize()
    moved = []
    for number in range(300):
        with streams[number % 4]:
            if number % 7 == 0:
                block @ block
            pinned = torch.full((500,), float(number), pin_memory=True)
            moved.append((pinned.to("gapless", non_blocking=True), number))
            back = torch.full((500,), -1.0, pin_memory=True)
            back.copy_(moved[-1][0], non_blocking=True)
            del pinned, back
    torch.accelerator.synchronize()
    assert all(tensor.eq(number).all().item() for tensor, number in moved)


@pytest.mark.parametrize("streams", [1, 2])
def test_a_steady_loop_takes_nothing_from_the_driver(streams):
    """Steps as a decode loop has them: copies in and out, temporaries, a replay, events."""
    weight = torch.randn(64, 64, device="gapless")
    tokens = torch.zeros(8, dtype=torch.long, device="gapless")
    graph = torch.gapless.Graph()
    with graph:
        logits = weight[tokens % 64] @ weight
        tokens.copy_(logits.argmax(-1))
    ring = [torch.empty(8, dtype=torch.long, pin_memory=True) for _ in range(3)]
    side = [torch.accelerator.current_stream(), torch.Stream("gapless")][streams - 1]
    events: list[torch.Event] = []

    def step(number: int) -> None:
        positions = torch.arange(8, pin_memory=True).add_(number)
        torch.add(tokens, positions.to("gapless", non_blocking=True)).relu_().sum()
        graph.replay()
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            out = tokens + 1
            ring[number % 3].copy_(out, non_blocking=True)
            events.append(side.record_event())
        if len(events) > 2:
            events.pop(0).synchronize()

    for number in range(50):
        step(number)
    before = torch.gapless.memory_stats()
    for number in range(300):
        step(number)
    after = torch.gapless.memory_stats()
    for name in ("num_device_alloc", "num_device_free", "num_sync_all_streams"):
        assert after[name] == before[name], name
    torch.accelerator.synchronize()


def test_an_empty_cache_gives_memory_back_to_the_system():
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    tensors = [torch.ones(16 << 20, dtype=torch.uint8, device="gapless") for _ in range(4)]
    tensors += [torch.ones(16 << 20, dtype=torch.uint8).pin_memory() for _ in range(4)]
    torch.accelerator.synchronize()
    before = resident_mib()
    tensors.clear()
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    assert resident_mib() < before - 120


def test_large_zeros_are_zeros_wherever_their_memory_comes_from():
    count = 5 << 20  # numbers of 4 bytes, more than is left as the system gives it
    settle()
    torch.accelerator.empty_cache()
    for _ in range(3):  # new memory, and twice what the one before has left
        zeros = torch.zeros(count, device="gapless")
        assert not zeros.any()
        zeros.fill_(1)
        del zeros
    dirty = torch.ones(2 * count, device="gapless")
    del dirty  # a part of a larger block
    assert not torch.zeros(count, dtype=torch.int32, device="gapless").any()


@pytest.mark.skipif(
    os.environ.get("GAPLESS_DRIVER") == "sim", reason="sim says of no memory that it is zeroed"
)
def test_large_zeros_take_memory_only_as_it_is_written():
    settle()
    torch.accelerator.empty_cache()  # what was used before has to be written
    before = resident_mib()
    zeros = torch.zeros(512 << 20, dtype=torch.uint8, device="gapless")
    torch.accelerator.synchronize()
    assert resident_mib() < before + 100
    zeros.fill_(1)
    torch.accelerator.synchronize()
    assert resident_mib() > before + 400


def test_large_zeros_of_a_replay_are_written_again():
    settle()
    torch.accelerator.empty_cache()
    graph, stream = torch.accelerator.Graph(), torch.Stream("gapless")
    with stream, graph:
        zeros = torch.zeros(5 << 20, device="gapless")
        total = zeros.sum()
        zeros.add_(1)
    for _ in range(2):
        graph.replay()
        torch.accelerator.synchronize()
        assert total.item() == 0
