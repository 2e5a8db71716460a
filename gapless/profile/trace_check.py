"""A trace read back: whether it is what the format asks for, and what is in it."""

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from gapless.profile.timeline import TimelineError


@dataclass(frozen=True)
class TraceContents:
    """What a trace holds; ``flows`` counts arrows that both begin and end."""

    processes: int
    tracks: int
    slices: int
    counts: int
    flows: int


def check_trace(path: str | os.PathLike[str]) -> TraceContents:
    """Parse a trace and check it.

    Raises:
        OSError: the file cannot be read.
        TimelineError: it cannot be parsed, an event is of no track, time runs backwards on a track,
            a slice is not closed, or a flow has only one end.
    """
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

    trace = protos.Trace()
    try:
        trace.ParseFromString(Path(path).read_bytes())
    except DecodeError as error:
        raise TimelineError(f"{os.fspath(path)} is not a trace ({error}); write it again") from None
    event_kinds = protos.TrackEvent
    open_slices: dict[int, int] = {}
    latest: defaultdict[int, int] = defaultdict(int)
    begun: set[int] = set()
    ended: set[int] = set()
    processes = slices = counts = 0

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise TimelineError(f"{os.fspath(path)} is not a sound trace: {what}; write it again")

    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            processes += packet.track_descriptor.HasField("process")
            open_slices[packet.track_descriptor.uuid] = 0
            continue
        event = packet.track_event
        track = event.track_uuid
        require(track in open_slices, f"an event is of track {track}, which is not described")
        require(packet.timestamp >= latest[track], f"time runs backwards on track {track}")
        latest[track] = packet.timestamp
        begun.update(event.flow_ids)
        ended.update(event.terminating_flow_ids)
        if event.type == event_kinds.TYPE_SLICE_BEGIN:
            open_slices[track] += 1
            slices += 1
        elif event.type == event_kinds.TYPE_SLICE_END:
            open_slices[track] -= 1
            require(open_slices[track] >= 0, f"a slice of track {track} ends twice")
        elif event.type == event_kinds.TYPE_COUNTER:
            counts += 1
    require(not any(open_slices.values()), "a slice does not end")
    require(begun == ended, "a flow has only one end")
    return TraceContents(processes, len(open_slices), slices, counts, len(begun))
