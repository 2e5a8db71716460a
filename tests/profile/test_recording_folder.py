import dataclasses

import numpy as np
import pytest

from gapless.errors import UsageError
from gapless.profile import Timeline, TimelineError
from gapless.profile.recording_folder import load_folder
from gapless.profile.timeline_file import save_in

from .handmade import timeline

STEPS = [(0, 0, 100, 200), (0, 1, 300, 400)]


def put(folder, made=None, **changes):
    return save_in(dataclasses.replace(made or timeline(STEPS), **changes), folder)


def test_files_come_in_the_order_of_their_processes_and_other_files_are_left_out(tmp_path):
    for pid in (100, 9, 20):
        put(tmp_path, pid=pid)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "trace-9-0.pftrace").touch()
    (tmp_path / ".timeline-.x.partial").touch()
    assert [recording.timeline.pid for recording in load_folder(tmp_path)] == [9, 20, 100]
    [one] = load_folder(tmp_path / "timeline-20-0.npz")
    assert (one.label, one.path.name) == ("handmade 20", "timeline-20-0.npz")


def test_two_recordings_of_one_process_are_told_apart(tmp_path):
    for _ in range(12):
        put(tmp_path)
    labels = [recording.label for recording in load_folder(tmp_path)]
    assert labels[:2] + labels[-1:] == ["handmade 42", "handmade 42 (2)", "handmade 42 (12)"]


def test_clocks_of_other_machines_are_moved_by_what_the_wall_says(tmp_path):
    host = [(0, "wait", 200, 300)]
    here = timeline(STEPS, host)
    there = timeline([(0, 0, 5100, 5200)], [(0, "wait", 5200, 5300)], queued_ns=5100)
    put(tmp_path, here, pid=1, boot_id="a", realtime_offset_ns=1000)
    put(tmp_path, here, pid=2, boot_id="a", realtime_offset_ns=1007)
    put(tmp_path, there, pid=3, boot_id="b", realtime_offset_ns=-4000)
    first, second, third = load_folder(tmp_path)
    assert [recording.is_shifted for recording in (first, second, third)] == [False, False, True]
    assert np.array_equal(first.timeline.work, second.timeline.work)
    moved = third.timeline
    assert moved.work[0, -3:].tolist() == [0, 100, 200]
    assert moved.ranges.columns[0, -2:].tolist() == [200, 300]
    assert moved.realtime_offset_ns == 1000


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda folder: folder.rmdir(), "is not there; record with GAPLESS_INSPECT_ENABLE=1"),
        (lambda folder: None, "holds no recording .* no process recorded anything into it"),
        (lambda folder: (folder / "timeline.txt").touch(), "holds no recording"),
        (
            lambda folder: (folder / ".timeline-.x.partial").touch(),
            "only recordings that",
        ),
        (lambda folder: (folder / "timeline-1-0.npz").mkdir(), "timeline-1-0.npz cannot be read"),
    ],
)
def test_folders_without_recordings(tmp_path, prepare, says):
    folder = tmp_path / "out"
    folder.mkdir()
    prepare(folder)
    with pytest.raises(UsageError, match=says):
        load_folder(folder)


def test_a_broken_file_is_named(tmp_path):
    put(tmp_path, pid=1)
    path = put(tmp_path, pid=2)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TimelineError, match=r"timeline-2-0\.npz is not a whole timeline"):
        load_folder(tmp_path)


def test_names_of_any_kind(tmp_path):
    put(tmp_path, pid=7)
    (tmp_path / "timeline-copy of 7.npz").write_bytes((tmp_path / "timeline-7-0.npz").read_bytes())
    assert len(load_folder(tmp_path)) == 2
    assert isinstance(load_folder(tmp_path)[1].timeline, Timeline)
