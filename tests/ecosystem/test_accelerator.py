"""Every public function of torch.accelerator, and what torch.Stream and torch.Event promise."""

import gc
import threading

import pytest
import torch
from torch import accelerator

PUBLIC = {
    "current_accelerator",
    "current_device_idx",
    "current_device_index",
    "current_stream",
    "device_count",
    "device_index",
    "empty_cache",
    "empty_host_cache",
    "get_device_capability",
    "get_memory_info",
    "is_available",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_device_idx",
    "set_device_index",
    "set_stream",
    "synchronize",
    "Graph",
}


def test_no_public_function_is_forgotten_here():
    assert set(accelerator.__all__) <= PUBLIC


def test_devices():
    assert accelerator.is_available()
    assert accelerator.current_accelerator() == torch.device("gapless")
    assert accelerator.current_accelerator(check_available=True) == torch.device("gapless")
    assert accelerator.device_count() == torch.gapless.device_count() >= 1
    assert accelerator.current_device_index() == 0
    accelerator.set_device_index(0)
    with accelerator.device_index(0):
        assert accelerator.current_device_index() == 0
    with accelerator.device_index(None):
        assert accelerator.current_device_index() == 0
    for device in (99, "gapless:99"):
        with pytest.raises(RuntimeError, match="there is no device gapless:99"):
            accelerator.set_device_index(device)
    with pytest.raises(ValueError, match="doesn't match the current accelerator"):
        accelerator.set_device_index("cuda:0")
    with pytest.warns(FutureWarning):
        accelerator.set_device_idx(0)
    with pytest.warns(FutureWarning):
        assert accelerator.current_device_idx() == 0


def test_each_device_is_current_in_its_turn_and_per_thread():
    last = accelerator.device_count() - 1
    seen = []
    with accelerator.device_index(last):
        assert torch.ones(1, device="gapless").device.index == last
        thread = threading.Thread(target=lambda: seen.append(accelerator.current_device_index()))
        thread.start()
        thread.join()
    assert seen == [0]
    assert accelerator.current_device_index() == 0


def test_capability():
    known = accelerator.get_device_capability()["supported_dtypes"]
    assert known == torch.gapless.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64} <= known
    assert torch.qint8 not in known
    for dtype in known:
        empty = torch.zeros(2, dtype=torch.uint8, device="gapless").to(dtype)
        assert empty.dtype == dtype


def test_memory():
    gc.collect()  # what earlier tests left in cycles must not be freed in between
    accelerator.synchronize()
    accelerator.empty_cache()
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    before = accelerator.memory_allocated()
    tensor = torch.empty(1 << 20, dtype=torch.uint8, device="gapless")
    assert accelerator.memory_allocated() - before >= 1 << 20
    assert accelerator.max_memory_allocated() >= accelerator.memory_allocated()
    assert accelerator.memory_reserved() >= accelerator.memory_allocated()
    assert accelerator.max_memory_reserved() >= accelerator.memory_reserved()
    stats = accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == accelerator.memory_allocated()
    free, total = accelerator.get_memory_info()
    assert 0 < free <= total
    del tensor
    assert accelerator.memory_allocated() == before
    peak = accelerator.max_memory_allocated()
    accelerator.reset_peak_memory_stats()
    assert accelerator.max_memory_allocated() < peak
    reserved = accelerator.memory_reserved()
    accelerator.empty_cache()
    assert accelerator.memory_reserved() <= reserved
    pinned = torch.ones(1 << 20, pin_memory=True)
    del pinned
    accelerator.empty_host_cache()


@pytest.mark.parametrize("priority", [-5, -1, 0, 1, 5])
def test_streams_of_any_priority(priority):
    stream = torch.Stream("gapless", priority=priority)
    assert stream.device == torch.device("gapless:0")
    with stream:
        assert accelerator.current_stream() == stream
        result = torch.ones(3, device="gapless").sum()
    stream.synchronize()
    assert stream.query()
    assert result.item() == 3
    again = torch.Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )
    assert again == stream
    assert hash(again) == hash(stream)
    accelerator.set_stream(stream)
    assert accelerator.current_stream() == stream
    assert accelerator.current_stream(0) == stream


def test_streams_wait_for_each_other():
    first, second = torch.Stream("gapless"), torch.Stream("gapless")
    for value in range(20):
        with first:
            block = torch.full((200, 200), 1e-3, device="gapless")
            for _ in range(5):
                block = block @ block
            tensor = block * 0 + value
        second.wait_stream(first)
        with second:
            total = tensor.sum()
        first.wait_stream(second)
        second.synchronize()
        assert total.item() == value * 200 * 200


def test_an_events_life():
    event = torch.Event("gapless", enable_timing=True)
    assert event.query()
    event.synchronize()
    event.wait()  # of an event that was never recorded: nothing
    stream = torch.Stream("gapless")
    start = stream.record_event(torch.Event("gapless", enable_timing=True))
    with stream:
        torch.ones(300, 300, device="gapless") @ torch.ones(300, 300, device="gapless")
        event.record()
    event.synchronize()
    assert event.query()
    first = start.elapsed_time(event)
    assert first > 0
    with stream:
        torch.ones(300, 300, device="gapless") @ torch.ones(300, 300, device="gapless")
    event.record(stream)  # again
    event.synchronize()
    assert start.elapsed_time(event) > first
    assert event.elapsed_time(start) < 0
    assert event.device == torch.device("gapless:0")


def test_a_blocking_event_and_one_without_timing():
    event = torch.Event("gapless", blocking=True)
    event.record()
    event.synchronize()
    assert event.query()
    with pytest.raises((ValueError, RuntimeError), match=r"enable_timing|timing"):
        event.elapsed_time(event)


def test_an_event_cannot_be_sent_to_a_process():
    event = torch.Event("gapless")
    event.record()
    with pytest.raises(NotImplementedError, match="ipc is not supported"):
        event.ipc_handle()


def test_an_event_is_waited_for_on_the_current_stream():
    producer, consumer = torch.Stream("gapless"), torch.Stream("gapless")
    with producer:
        block = torch.full((300, 300), 1e-3, device="gapless")
        for _ in range(10):
            block = block @ block
        tensor = block * 0 + 5
        ready = torch.Event("gapless")
        ready.record()
    with consumer:
        ready.wait()
        total = tensor.sum()
    consumer.synchronize()
    assert total.item() == 5 * 300 * 300
