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


def test_statistics_and_empty_cache():
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
