import sys

import pytest
import torch


def keep_busy() -> torch.Tensor:
    block = torch.full((300, 300), 1e-3, device="gapless")
    for _ in range(20):
        block = block @ block
    return block


def test_events_follow_the_stream():
    event = torch.Event("gapless")
    assert event.query()  # never recorded
    keep_busy()
    event.record()
    event.synchronize()
    assert event.query()


def test_elapsed_time_needs_timing():
    start, end = (torch.Event("gapless", enable_timing=True) for _ in range(2))
    start.record()
    keep_busy()
    end.record()
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(torch.Event("gapless", enable_timing=True))
    end.synchronize()
    assert start.elapsed_time(end) > 0
    plain = torch.Event("gapless")
    plain.record()
    plain.synchronize()
    with pytest.raises((RuntimeError, ValueError)):
        start.elapsed_time(plain)


def test_another_stream_waits_for_an_event():
    producer, consumer = torch.Stream("gapless"), torch.Stream("gapless")
    for value in range(50):
        with producer:
            keep_busy()
            tensor = torch.full((1000,), float(value), device="gapless")
            ready = producer.record_event()
        with consumer:
            consumer.wait_event(ready)
            total = tensor.sum()
        consumer.synchronize()
        assert total.item() == 1000 * value


def test_a_rearmed_event_keeps_its_old_waiters():
    first, second = torch.Stream("gapless"), torch.Stream("gapless")
    event = torch.Event("gapless")
    cell = torch.zeros(1, device="gapless")
    torch.accelerator.synchronize()
    with first:
        keep_busy()
        cell.fill_(1)
        event.record(first)
    second.wait_event(event)
    event.record(second)  # re-armed before the wait was reached
    with second:
        copy = cell.clone()
    second.synchronize()
    assert copy.item() == 1


def test_streams_are_distinct_and_current_is_per_thread():
    stream = torch.Stream("gapless")
    before = torch.accelerator.current_stream()
    with stream:
        assert torch.accelerator.current_stream() == stream
    assert torch.accelerator.current_stream() == before
    assert stream != before


def test_the_device_works_while_python_holds_the_lock():
    """The device's thread may never need Python's lock.

    Nothing in the loop lets go of the lock, and no other thread may ask for it in time, so the
    event can only be reached if the device's thread does without.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    try:
        host = torch.arange(1000.0)
        for _ in range(20):
            keep_busy()
            # Operands whose last Python reference goes away while they are queued.
            (host.to("gapless", non_blocking=True) * torch.tensor(3.0)).untyped_storage()
        event = torch.Event("gapless")
        event.record()
        while not event.query():
            pass
    finally:
        sys.setswitchinterval(interval)
