import sys
from types import ModuleType

import numpy as np
import pytest

import gapless.device
from gapless.errors import UsageError
from gapless.profile import Timeline, environment, host_range, ranges, record


class FakeRecorder(ModuleType):
    """Stands for the native recorder: two steps of work, in the clock of the test."""

    def __init__(self):
        super().__init__("gapless.device.recorder")
        self.calls = []

    def start(self, capacity):
        self.calls.append(f"start {capacity}")

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
    with record(tmp_path / "out", capacity=10) as recording:
        with host_range("prepare"):
            pass
        with pytest.raises(RuntimeError, match="still runs"):
            _ = recording.timeline
    assert fake.calls == ["drain", "start 10", "stop", "drain"]
    assert recording.timeline.dropped_work == 7
    assert recording.timeline.ranges.names == ("prepare",)
    again = Timeline.load(recording.timeline_path)
    assert np.array_equal(again.work, recording.timeline.work)
    assert recording.trace_path.stat().st_size > 0
    assert not ranges.is_on()


def test_recordings_do_not_overwrite_each_other(tmp_path):
    paths = set()
    for _ in range(2):
        with record(tmp_path, trace=False) as recording:
            pass
        paths.add(recording.timeline_path)
        assert recording.trace_path is None
    assert paths == set(tmp_path.iterdir())
    assert len(paths) == 2


def test_a_failure_inside_is_raised_and_recorded(tmp_path):
    with pytest.raises(ZeroDivisionError), record(tmp_path) as recording:
        _ = 1 / 0
    assert recording.timeline_path.exists()
    assert not ranges.is_on()


def test_a_second_recording_at_once_is_refused_and_leaves_the_first_alone(tmp_path, fake):
    with record(tmp_path) as outer:
        with pytest.raises(RuntimeError, match="already"), record(tmp_path):
            pass
        assert ranges.is_on()
        assert fake.calls == ["drain", "start 65536"]
    assert outer.timeline_path.exists()


def test_environment_asks_for_nothing_by_default(monkeypatch):
    monkeypatch.delenv("GAPLESS_RECORD", raising=False)
    assert not environment.start_if_asked()


def test_environment_records_until_exit(monkeypatch, tmp_path):
    at_exit = []
    monkeypatch.setattr(environment.atexit, "register", at_exit.append)
    monkeypatch.setenv("GAPLESS_RECORD", str(tmp_path))
    assert environment.start_if_asked()
    assert ranges.is_on()
    [write] = at_exit
    write()
    assert not ranges.is_on()
    assert {path.suffix for path in tmp_path.iterdir()} == {".npz", ".pftrace"}


def test_a_folder_that_cannot_be_made_is_a_clear_error(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GAPLESS_RECORD", str(tmp_path / "file" / "out"))
    with pytest.raises(UsageError, match=r"GAPLESS_RECORD=.*out: the folder cannot be made"):
        environment.start_if_asked()
    assert not ranges.is_on()
