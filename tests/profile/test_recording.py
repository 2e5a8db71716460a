import sys
from types import ModuleType

import numpy as np
import pytest

import gapless.device
from gapless.profile import Timeline, count_tokens, host_range, ranges, record, recording


class FakeRecorder(ModuleType):
    """Stands for the native recorder: two steps of work, in the clock of the test."""

    def __init__(self):
        super().__init__("gapless.device.recorder")
        self.calls = []

    def start(self, capacity):
        self.calls.append(f"start {capacity}")

    def is_on(self):
        return False

    def stop(self):
        self.calls.append("stop")

    def drain(self):
        self.calls.append("drain")

        class Batch:
            columns = np.array([[0, 0, 1, 0, 0, 0, 1, 2, 3], [0, 0, 2, 1, 0, 0, 2, 4, 5]], np.int64)
            names = ("op",)
            dropped = 7

        return Batch()


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    recorder = FakeRecorder()
    monkeypatch.setitem(sys.modules, "gapless.device.recorder", recorder)
    monkeypatch.setattr(gapless.device, "recorder", recorder, raising=False)
    yield recorder
    ranges.stop()
    ranges.drain()


def test_writes_a_timeline_and_a_trace(tmp_path, fake):
    with record(tmp_path / "out", capacity=10, trace=True) as made:
        with host_range("prepare"):
            pass
        with pytest.raises(RuntimeError, match="still runs"):
            _ = made.timeline
    assert fake.calls == ["drain", "start 10", "stop", "drain"]
    assert made.timeline.dropped_work == 7
    assert made.timeline.ranges.names == ("prepare",)
    again = Timeline.load(made.timeline_path)
    assert np.array_equal(again.work, made.timeline.work)
    assert made.trace_path.stat().st_size > 0
    assert not ranges.is_on()


def test_recordings_do_not_overwrite_each_other(tmp_path):
    paths = set()
    for _ in range(2):
        with record(tmp_path) as made:
            pass
        paths.add(made.timeline_path)
        assert made.trace_path is None
    assert paths == set(tmp_path.iterdir())
    assert len(paths) == 2


def test_a_failure_inside_is_raised_and_recorded(tmp_path):
    with pytest.raises(ZeroDivisionError), record(tmp_path) as made:
        _ = 1 / 0
    assert made.timeline_path.exists()
    assert not ranges.is_on()


def test_a_recording_inside_another_is_part_of_it(tmp_path, fake):
    with record(tmp_path / "outer", capacity=10) as outer:
        with host_range("before"):
            pass
        count_tokens(3)
        with record(tmp_path / "inner", capacity=99) as inner:
            with host_range("inside"):
                pass
            count_tokens(4)
        assert ranges.is_on()
        with host_range("before"):
            pass
    # Each drain of the fake gives two works of one stream, and seven dropped.
    assert fake.calls == ["drain", "start 10", "drain", "drain", "stop", "drain"]
    assert inner.timeline.ranges.names == ("inside",)
    assert (len(inner.timeline.work), inner.timeline.tokens) == (2, 4)
    whole = outer.timeline
    names = [whole.ranges.names[index] for index in whole.range_column("name_id").tolist()]
    assert names == ["before", "inside", "before"]
    assert (len(whole.work), whole.dropped_work, whole.tokens) == (6, 21, 7)
    count_tokens(5)  # nothing records
    assert len(list(tmp_path.rglob("timeline-*"))) == 2


def test_a_join_keeps_the_bounds_of_the_buffers(tmp_path):
    with record(tmp_path, capacity=3) as outer:
        for name in "abc":
            with record(tmp_path), host_range(name):
                pass
        for name in "de":
            with host_range(name):
                pass
    assert [outer.timeline.ranges.names[i] for i in outer.timeline.range_column("name_id")] == [
        "c", "d", "e"]  # fmt: skip
    assert outer.timeline.ranges.dropped == 2
    assert (len(outer.timeline.work), outer.timeline.dropped_work) == (3, 7 * 7 + 14 - 3)


def test_no_capacity_is_refused(tmp_path):
    with pytest.raises(ValueError, match="capacity is 0"), record(tmp_path, capacity=0):
        pass
    assert not ranges.is_on()


def test_tokens_are_counted_upwards(tmp_path):
    with record(tmp_path), pytest.raises(ValueError, match="-1 tokens"):
        count_tokens(-1)


def test_what_still_records_at_the_end_is_written_once(tmp_path, fake, capsys):
    recording.begin(tmp_path / "one")
    recording.begin(tmp_path / "two")
    recording.finish()
    recording.finish()
    assert len(list(tmp_path.rglob("timeline-*"))) == 2
    assert not ranges.is_on()
    recording.begin(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    recording.finish()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("gapless: error: the recording of process")
    assert "gone (No such file or directory); it is lost" in line
    assert not ranges.is_on()


def test_a_folder_that_cannot_be_written_to_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"), record(tmp_path / "file"):
        pass
    assert not ranges.is_on()
