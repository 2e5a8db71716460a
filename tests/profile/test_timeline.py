import json
import multiprocessing
import pickle

import numpy as np
import pytest

from gapless.errors import GaplessError
from gapless.profile import HostRanges, HostThread, Timeline, TimelineError, name_process, ranges
from gapless.profile.timeline import WORK_COLUMNS
from gapless.profile.timeline_file import FORMAT, FORMAT_VERSION, _digest, save_in

from .handmade import timeline


@pytest.fixture
def recorded():
    return timeline([(0, 0, 0, 10), (1, 1, 30, 40)], [(0, "wait", 0, 5)], dropped=3)


def test_comes_back_as_it_was(tmp_path, recorded):
    path = tmp_path / "one.npz"
    recorded.save(path)
    again = Timeline.load(path)
    assert np.array_equal(again.work, recorded.work)
    assert np.array_equal(again.ranges.columns, recorded.ranges.columns)
    assert again.ranges.names == ("wait",)
    assert again.ranges.threads == recorded.ranges.threads
    assert (again.names, again.dropped_work) == (("work", "wait"), 3)
    assert (again.pid, again.process_name, again.realtime_offset_ns) == (42, "handmade", 0)
    assert [file.name for file in tmp_path.iterdir()] == ["one.npz"]


def test_names_are_text_of_any_kind(tmp_path):
    names = ("aten::add", "größer\n\0", "")
    work = np.array([[0, 0, 1, 0, 2, 0, 1, 2, 3]], np.int64)
    Timeline(
        work, names, HostRanges(np.empty((0, 5), np.int64), (), (HostThread(1, "é"),), 0)
    ).save(tmp_path / "a")
    again = Timeline.load(tmp_path / "a")
    assert again.names == names
    assert again.ranges.threads[0].name == "é"


def test_from_recording_takes_what_the_recorders_give():
    class Batch:
        columns = np.zeros((1, 9), np.int64)
        names = ("op",)
        dropped = 2

    made = Timeline.from_recording(Batch(), ranges.drain())
    assert (made.devices, made.dropped_work) == ((0,), 2)
    assert made.realtime_offset_ns > 0


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("name_id", 2, "row 0 has id 2, but there are 2 names"),
        ("kind", -1, "row 0 has id -1"),
        ("end_ns", -5, "row 0 ends at -5 ns, before its start at 0 ns"),
    ],
)
def test_contradictions_are_refused(recorded, column, value, says):
    work = recorded.work.copy()
    work[0, WORK_COLUMNS.index(column)] = value
    with pytest.raises(TimelineError, match=says):
        Timeline(work, recorded.names)


@pytest.mark.parametrize(
    ("child", "rank", "name"),
    [
        ("MainProcess", "", "train.py"),
        ("SpawnProcess-2", "", "train.py SpawnProcess-2"),
        ("MainProcess", "3", "train.py rank 3"),
        ("MainProcess", "three", "train.py"),
    ],
)
def test_processes_are_called_by_what_tells_them_apart(monkeypatch, child, rank, name):
    monkeypatch.setattr("sys.argv", ["/somewhere/train.py"])
    monkeypatch.setattr(multiprocessing.current_process(), "_name", child)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr("gapless.profile.process_name._given", None)
    assert Timeline(np.empty((0, 9), np.int64), ()).process_name == name
    name_process("worker 7")
    assert Timeline(np.empty((0, 9), np.int64), ()).process_name == "worker 7"


def test_bounds(recorded):
    assert (recorded.events, recorded.bounds_ns) == (3, (0, 40))
    assert timeline([(0, 0, 50, 60)], queued_ns=20).bounds_ns == (30, 60)
    assert (timeline([]).events, timeline([]).bounds_ns) == (0, (0, 0))


def test_wrong_shape_is_refused():
    with pytest.raises(
        TimelineError, match=r"int64 array \[n, 9\] is needed, not float64 \[3, 2\]"
    ):
        Timeline(np.zeros((3, 2)), ())


def test_range_ids_are_checked(recorded):
    bad = HostRanges(np.array([[1, 0, 0, 0, 1]], np.int64), ("a",), (HostThread(1, "t"),), 0)
    with pytest.raises(TimelineError, match="1 threads"):
        Timeline(recorded.work, recorded.names, bad)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        Timeline.load(tmp_path / "none")


def test_every_cut_of_a_file_is_a_clear_error(tmp_path, recorded):
    path = tmp_path / "whole.npz"
    recorded.save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(TimelineError, match=r"whole\.npz is not a whole timeline"):
            Timeline.load(path)


def test_damage_is_noticed_or_harmless(tmp_path, recorded):
    path = tmp_path / "damaged.npz"
    recorded.save(path)
    whole = path.read_bytes()
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        message = "damaged.npz"
        try:
            assert np.array_equal(Timeline.load(path).work, recorded.work)
        except TimelineError as error:
            message = str(error)
        assert "damaged.npz" in message
        assert "\n" not in message


@pytest.mark.parametrize("content", [b"", b"hello", b"\x93NUMPY", pickle.dumps({"a": 1})])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(TimelineError, match="other"):
        Timeline.load(path)


def test_pickles_are_not_executed(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    path = tmp_path / "trap.npz"
    np.savez(path, header=np.array([Trap()], dtype=object), work=np.zeros(1), ranges=np.zeros(1))
    with pytest.raises(TimelineError):
        Timeline.load(path)


def write(path, header, **arrays):
    whole = {
        "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
        "work": np.empty((0, 9), np.int64),
        "ranges": np.empty((0, 5), np.int64),
    } | arrays
    digest = np.frombuffer(_digest(*(whole[name] for name in ("header", "work", "ranges"))), "u1")
    np.savez(path, **({"sha256": digest} | whole))


HEADER = {
    "format": FORMAT,
    "version": FORMAT_VERSION,
    "pid": 1,
    "process_name": "p",
    "realtime_offset_ns": 0,
    "boot_id": "",
    "tokens": 0,
    "names": [],
    "dropped_work": 0,
    "range_names": [],
    "threads": [],
    "dropped_ranges": 0,
}


def test_the_header_that_the_next_tests_break_is_good(tmp_path):
    write(tmp_path / "good.npz", HEADER)
    assert Timeline.load(tmp_path / "good.npz").pid == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "other"}, "is not a gapless-timeline file"),
        ({"version": 99}, "version 99; this gapless reads version 2"),
        ({"pid": "one"}, "pid is 'one', not an integer"),
        ({"tokens": -1}, "tokens is -1, below 0"),
        ({"names": [1]}, "names is not a list of strings"),
        ({"threads": [1]}, "contradicts itself"),
        ({"threads": None}, "contradicts itself"),
    ],
)
def test_bad_headers_are_refused(tmp_path, change, says):
    path = tmp_path / "bad.npz"
    write(path, HEADER | change)
    with pytest.raises(TimelineError, match=says):
        Timeline.load(path)


def test_missing_header_fields_are_refused(tmp_path):
    path = tmp_path / "bad.npz"
    for key in HEADER:
        write(path, {name: value for name, value in HEADER.items() if name != key})
        with pytest.raises(TimelineError, match=r"bad\.npz"):
            Timeline.load(path)


def test_a_change_with_sound_checks_of_the_archive_is_noticed(tmp_path, recorded):
    path = tmp_path / "changed.npz"
    recorded.save(path)
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    arrays["work"][0, WORK_COLUMNS.index("end_ns")] += 1
    np.savez(path, **arrays)
    with pytest.raises(TimelineError, match=r"changed\.npz was changed after it was recorded"):
        Timeline.load(path)


@pytest.mark.parametrize("can_link", [True, False])
def test_files_in_a_folder_are_new_ones(tmp_path, recorded, monkeypatch, can_link):
    def refuse(*_):
        raise PermissionError(1, "no links here")

    if not can_link:
        monkeypatch.setattr("os.link", refuse)
    paths = [save_in(recorded, tmp_path) for _ in range(3)]
    assert [path.name for path in paths] == [f"timeline-42-{number}.npz" for number in range(3)]
    assert {Timeline.load(path).pid for path in paths} == {42}
    assert set(tmp_path.iterdir()) == set(paths)


def test_errors_are_for_the_command_line_too():
    assert issubclass(TimelineError, GaplessError)


def test_nothing_is_left_behind_when_saving_fails(tmp_path, recorded):
    with pytest.raises(FileNotFoundError):
        recorded.save(tmp_path / "missing" / "file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        recorded.save(tmp_path / "folder")
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]
