from collections import defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gapless.profile import WORK_COLUMNS, WORK_KINDS, Timeline, TimelineError, write_trace
from gapless.profile.perfetto_file import PerfettoFile
from gapless.profile.trace_check import check_trace

from .handmade import timeline

protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


class Parsed:
    """A trace read back: tracks by name, and their events with interned names resolved."""

    def __init__(self, path):
        trace = protos.Trace()
        trace.ParseFromString(path.read_bytes())
        self.tracks, self.parents, self.events = {}, {}, defaultdict(list)
        self.processes = {}
        names, notes = {}, {}
        for number, packet in enumerate(trace.packet):
            assert packet.trusted_packet_sequence_id == 1
            cleared = protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
            assert (packet.sequence_flags == cleared) == (number == 0)
            names.update({entry.iid: entry.name for entry in packet.interned_data.event_names})
            notes.update(
                {entry.iid: entry.name for entry in packet.interned_data.debug_annotation_names}
            )
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                assert track.uuid not in self.tracks
                self.parents[track.uuid] = track.parent_uuid
                if track.HasField("process"):
                    self.processes[track.uuid] = track.process.pid
                self.tracks[track.uuid] = (
                    track.process.process_name or track.thread.thread_name or track.name
                )
            else:
                event = packet.track_event
                assert event.track_uuid in self.tracks
                self.events[event.track_uuid].append(
                    {
                        "ts": packet.timestamp,
                        "type": event.type,
                        "name": names.get(event.name_iid),
                        "value": event.counter_value,
                        "starts": list(event.flow_ids),
                        "ends": list(event.terminating_flow_ids),
                        "notes": {
                            notes[note.name_iid]: note.string_value or note.int_value
                            for note in event.debug_annotations
                        },
                    }
                )

    def on(self, name):
        return [
            event
            for uuid, track in self.tracks.items()
            if track == name
            for event in self.events[uuid]
        ]

    def slices(self, name):
        found, stack = [], []
        for event in self.on(name):
            if event["type"] == BEGIN:
                stack.append(event)
            elif event["type"] == END:
                begin = stack.pop()
                found.append((begin["name"], begin["ts"], event["ts"]))
        assert not stack
        return sorted(found, key=lambda item: item[1:])

    def check(self):
        """What the format asks of every track, and of flows."""
        starts, ends = {}, {}
        for events in self.events.values():
            depth, last = 0, -1
            for event in events:
                assert event["ts"] >= last
                last = event["ts"]
                depth += {BEGIN: 1, END: -1}.get(event["type"], 0)
                assert depth >= 0
                starts.update(dict.fromkeys(event["starts"], event["ts"]))
                for flow in event["ends"]:
                    assert flow not in ends
                    ends[flow] = event["ts"]
            assert depth == 0
        assert starts.keys() == ends.keys()
        return starts, ends


def parse(path, *timelines):
    write_trace(path, timelines)
    return Parsed(path)


def test_shows_host_gaps_streams_and_queue(tmp_path):
    made = timeline(
        [(0, 0, 100, 200), (0, 1, 300, 400), (1, -1, 150, 180)],
        [(0, "submit", 20, 95), (0, "process", 210, 280), (1, "serve", 0, 500)],
        waits=[(1, -1, 180, 190)],
        queued_ns=10,
    )
    parsed = parse(tmp_path / "a.pftrace", made)
    starts, ends = parsed.check()
    assert parsed.processes == {1: 42}
    assert parsed.slices("thread 0") == [("submit", 20, 95), ("process", 210, 280)]
    assert parsed.slices("stream 0") == [("work", 100, 200), ("work", 300, 400)]
    assert parsed.slices("stream 1") == [("work", 150, 180), ("wait", 180, 190)]
    assert parsed.slices("idle between steps") == [("idle: serve", 200, 300)]
    notes = parsed.on("stream 0")[0]["notes"]
    assert notes == {"work": 1, "kind": "op", "step": 0, "queued_ns": 10}
    gap = parsed.on("idle between steps")[0]["notes"]
    assert gap == {"before step": 0, "after step": 1, "idle_ns": 100,
                   "process, ns": 35, "serve, ns": 65}  # fmt: skip
    depth = [(event["ts"], event["value"]) for event in parsed.on("queue depth")]
    assert depth == [(90, 1), (140, 2), (180, 1), (200, 0), (290, 1), (400, 0)]
    assert sorted(starts.values()) == [90, 140, 170, 290]
    assert all(starts[flow] <= ends[flow] for flow in starts)


def test_submissions_are_shown_inside_the_range_that_made_them(tmp_path):
    made = timeline(
        [(0, 0, 100, 200), (0, 1, 300, 400)],
        [(0, "serve", 0, 500), (1, "submit", 80, 120)],
        queued_ns=10,
    )
    parsed = parse(tmp_path / "a.pftrace", made)
    parsed.check()
    kinds = [event["type"] for event in parsed.on("thread 1")]
    assert kinds == [BEGIN, INSTANT, END]
    assert [event["ts"] for event in parsed.on("thread 0")] == [0, 290, 500]


def test_submissions_outside_any_range_have_a_track(tmp_path):
    parsed = parse(tmp_path / "a.pftrace", timeline([(0, 0, 100, 200)], queued_ns=10))
    parsed.check()
    assert [event["ts"] for event in parsed.on("submitted")] == [90]
    assert parsed.on("idle between steps") == []


def test_work_submitted_before_the_recording_has_no_arrow(tmp_path):
    made = timeline([(0, 0, 100, 200)], queued_ns=100)
    parsed = parse(tmp_path / "a.pftrace", made)
    starts, _ = parsed.check()
    assert starts == {}
    assert [(e["ts"], e["value"]) for e in parsed.on("queue depth")] == [(100, 1), (200, 0)]


def test_processes_and_devices_keep_their_own_tracks(tmp_path):
    one = timeline([(0, 0, 0, 10), (0, 1, 20, 30)], queued_ns=-1)
    two = timeline([(0, 0, 5, 15), (0, 1, 25, 35)], device=3, queued_ns=-1)
    parsed = parse(tmp_path / "a.pftrace", one, two)
    starts, _ = parsed.check()
    assert len(starts) == 4
    assert list(parsed.tracks.values()).count("handmade") == 2
    assert parsed.slices("stream 0") == [
        ("work", 0, 10),
        ("work", 5, 15),
        ("work", 20, 30),
        ("work", 25, 35),
    ]
    assert "device 3" in parsed.tracks.values()


def test_two_recordings_of_one_process_are_two_processes(tmp_path):
    made = timeline([(0, 0, 0, 10)], [(0, "mark", 0, 5)])
    parsed = parse(tmp_path / "a.pftrace", made, made, made)
    parsed.check()
    pids = list(parsed.processes.values())
    assert pids[0] == 42
    assert len(set(pids)) == 3
    assert check_trace(tmp_path / "a.pftrace").processes == 3


def test_copies_have_a_track_of_their_own(tmp_path):
    made = timeline([(0, 0, 0, 10), (1, 0, 5, 15), (1, 1, 20, 30)])
    made.work[1:, WORK_COLUMNS.index("kind")] = [WORK_KINDS.index("copy to device"),
                                                WORK_KINDS.index("copy to host")]  # fmt: skip
    parsed = parse(tmp_path / "a.pftrace", made)
    parsed.check()
    assert parsed.slices("copies") == [("copy to device", 5, 15), ("copy to host", 20, 30)]
    assert parsed.slices("stream 1") == [("work", 5, 15), ("work", 20, 30)]


def test_numbers_that_begin_again_are_not_joined(tmp_path):
    work = [(0, n % 3, 100 * n, 100 * n + 60) for n in range(6)]
    parsed = parse(tmp_path / "a.pftrace", timeline(work))
    gaps = [(start, end) for _, start, end in parsed.slices("idle between steps")]
    assert gaps == [(60, 100), (160, 200), (360, 400), (460, 500)]


def test_the_check_counts_what_is_there(tmp_path):
    made = timeline([(0, 0, 10, 20), (0, 1, 30, 40)], [(0, "submit", 0, 9)], queued_ns=5)
    write_trace(tmp_path / "a.pftrace", [made])
    found = check_trace(tmp_path / "a.pftrace")
    assert (found.processes, found.slices, found.counts, found.flows) == (1, 4, 4, 2)
    assert found.tracks == len(Parsed(tmp_path / "a.pftrace").tracks)


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda trace: b"\x0f" + trace.SerializeToString(), "is not a trace"),
        (lambda trace: trace.packet.pop(0), "which is not described"),
        (lambda trace: setattr(trace.packet[-1], "timestamp", 1), "time runs backwards"),
        (lambda trace: trace.packet.pop(), "a slice does not end"),
        (lambda trace: trace.packet.append(trace.packet[-1]), "ends twice"),
        (lambda trace: trace.packet[-1].track_event.flow_ids.append(9), "a flow has only one end"),
    ],
)
def test_the_check_finds_what_is_wrong(tmp_path, break_it, says):
    with PerfettoFile(tmp_path / "a.pftrace") as file:
        track = file.process("p", 1)
        file.begin(track, 5, "slice", "host")
        file.end(track, 9)
    trace = protos.Trace()
    trace.ParseFromString((tmp_path / "a.pftrace").read_bytes())
    made = break_it(trace)
    written = made if isinstance(made, bytes) else trace.SerializeToString()
    (tmp_path / "a.pftrace").write_bytes(written)
    with pytest.raises(TimelineError, match=says):
        check_trace(tmp_path / "a.pftrace")


def test_an_empty_timeline_is_a_trace_too(tmp_path):
    parsed = parse(tmp_path / "a.pftrace", timeline([]))
    assert list(parsed.tracks.values()) == ["handmade"]


def test_long_traces_are_written_in_chunks(tmp_path):
    work = [(0, step, 10 * step, 10 * step + 5) for step in range(3000)]
    parsed = parse(tmp_path / "a.pftrace", timeline(work, queued_ns=1))
    parsed.check()
    assert len(parsed.slices("stream 0")) == 3000
    assert len(parsed.slices("idle between steps")) == 2999


def test_a_failure_leaves_no_file(tmp_path):
    class Broken(Timeline):
        def column(self, name):
            raise RuntimeError("broken")

    good = timeline([(0, 0, 0, 1)])
    broken = Broken.__new__(Broken)
    broken.__dict__.update(good.__dict__)
    with pytest.raises(RuntimeError, match="broken"):
        write_trace(tmp_path / "a.pftrace", [broken])
    assert list(tmp_path.iterdir()) == []


rows = st.lists(
    st.tuples(st.integers(0, 1), st.integers(-1, 4), st.integers(1, 60), st.integers(0, 12)).map(
        lambda row: (row[0], row[1], row[2], row[2] + row[3])
    ),
    max_size=20,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows, rows, st.integers(0, 70))
def test_any_timeline_makes_a_valid_trace(tmp_path, work, marks, queued_ns):
    host = [(thread, f"range {step}", start, end) for thread, step, start, end in marks]
    made = timeline(work, host, queued_ns=queued_ns)
    parsed = parse(tmp_path / "a.pftrace", made)
    parsed.check()
    slices = sum(
        event["type"] == BEGIN
        for uuid, events in parsed.events.items()
        if parsed.tracks[uuid].startswith(("stream", "thread"))
        for event in events
    )
    assert slices == len(work) + len(host)
    depths = [event["value"] for event in parsed.on("queue depth")]
    assert all(depth >= 0 for depth in depths)
    assert depths[-1:] in ([], [0])
    assert np.array_equal(made.work[:, 0] >= 0, np.ones(len(work), bool))
