import os
import threading

import pytest

from gapless.profile import host_range, ranges


@pytest.fixture(autouse=True)
def _stopped():
    yield
    ranges.stop()
    ranges.drain()


def rows(recorded):
    return [
        (recorded.names[name_id], step, end >= start)
        for _, step, name_id, start, end in recorded.columns.tolist()
    ]


def test_off_by_default():
    assert not ranges.is_on()
    with host_range("nobody looks"):
        pass
    assert len(ranges.drain().columns) == 0


def test_records_names_steps_and_threads():
    ranges.start()
    with host_range("outer", 3), host_range("inner"):
        pass

    def mark():
        with host_range("beside"):
            pass

    other = threading.Thread(target=mark, name="other")
    other.start()
    other.join()
    recorded = ranges.drain()
    assert rows(recorded) == [("inner", -1, True), ("outer", 3, True), ("beside", -1, True)]
    assert [thread.name for thread in recorded.threads] == ["MainThread", "other"]
    assert recorded.columns[:, 0].tolist() == [0, 0, 1]
    assert recorded.dropped == 0


@pytest.mark.parametrize("on", [False, True])
def test_lets_exceptions_pass_and_still_records(on):
    if on:
        ranges.start()
    with pytest.raises(ZeroDivisionError), host_range("fails"):
        _ = 1 / 0
    assert len(ranges.drain().columns) == on


def test_forgets_the_oldest_and_says_how_many():
    ranges.start(capacity=3)
    for step in range(5):
        with host_range("step", step):
            pass
    recorded = ranges.drain()
    assert recorded.columns[:, 1].tolist() == [2, 3, 4]
    assert recorded.dropped == 2
    with host_range("step", 5):
        pass
    recorded = ranges.drain()
    assert (recorded.columns[:, 1].tolist(), recorded.dropped) == ([5], 0)


def test_start_forgets_and_refuses_a_second():
    ranges.start()
    with host_range("old"):
        pass
    with pytest.raises(RuntimeError, match="already"):
        ranges.start()
    ranges.stop()
    ranges.start()
    assert len(ranges.drain().columns) == 0


def test_refuses_no_capacity():
    with pytest.raises(ValueError, match="capacity is 0"):
        ranges.start(capacity=0)
    assert not ranges.is_on()


def test_many_threads_lose_nothing():
    ranges.start(capacity=100_000)
    taken = 0

    def mark():
        for step in range(2000):
            with host_range("busy", step):
                pass

    threads = [threading.Thread(target=mark) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        recorded = ranges.drain()
        assert recorded.dropped == 0
        taken += len(recorded.columns)
    taken += len(ranges.drain().columns)
    assert taken == 8000


def test_what_a_thread_lost_is_counted_after_its_end():
    ranges.start(capacity=2)

    def mark(count):
        for _ in range(count):
            with host_range("short"):
                pass

    thread = threading.Thread(target=mark, args=(5,))
    thread.start()
    thread.join()
    mark(3)
    recorded = ranges.drain()
    assert (len(recorded.columns), recorded.dropped) == (2, 6)
    assert ranges.drain().dropped == 0


def test_a_forked_child_has_ranges_of_its_own():
    ranges.start()
    with host_range("parent"):
        pass
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        with host_range("child"):
            pass
        recorded = ranges.drain()
        right_thread = recorded.threads[0].native_id == os.getpid()
        answer = f"{recorded.names} {recorded.dropped} {right_thread}"
        os.write(write_end, answer.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        assert answer.read() == "('child',) 0 True"
    os.waitpid(child, 0)
    assert rows(ranges.drain()) == [("parent", -1, True)]
