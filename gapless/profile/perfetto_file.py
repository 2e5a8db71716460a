"""Writes packets of the Perfetto trace format: tracks, slices, counters and flows.

The protobuf classes take a tenth of a second to import, so they are imported when a file is opened.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

# Packets are serialized in chunks, so that memory does not grow with the trace.
_PACKETS_PER_CHUNK = 4096
_SEQUENCE = 1


class PerfettoFile:
    """A trace being written, to be used in a ``with`` block; the file appears when it is whole.

    Timestamps are nanoseconds. On one track they must not decrease, and each ``begin`` needs an
    ``end``. A track's id is what the method that made it returned.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

        self._protos: Any = protos
        self._target = Path(path)
        self._partial = self._target.with_name(f"{self._target.name}.{os.getpid()}.partial")
        self._file: BinaryIO = self._partial.open("wb")
        self._chunk: Any = protos.Trace()
        self._names: dict[str, int] = {}
        self._annotations: dict[str, int] = {}
        self._tracks = 0
        self._is_first = True

    def __enter__(self) -> "PerfettoFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._write_chunk()
                self._file.close()
                self._partial.replace(self._target)
        finally:
            self._file.close()
            self._partial.unlink(missing_ok=True)

    def process(self, name: str, pid: int) -> int:
        """A process, under which tracks may be placed."""
        track = self._descriptor(name, None)
        track.process.pid = pid
        track.process.process_name = name
        track.ClearField("name")
        return int(track.uuid)

    def thread(self, name: str, pid: int, native_id: int, process: int) -> int:
        """The track of one thread of a process."""
        track = self._descriptor(name, process)
        track.thread.pid = pid
        track.thread.tid = native_id
        track.thread.thread_name = name
        track.ClearField("name")
        return int(track.uuid)

    def track(self, name: str, parent: int) -> int:
        """A track of slices that belongs to no thread; its own children keep their order."""
        track = self._descriptor(name, parent)
        track.child_ordering = self._protos.TrackDescriptor.EXPLICIT
        track.sibling_order_rank = self._tracks
        return int(track.uuid)

    def counter(self, name: str, parent: int) -> int:
        """A track of numbers."""
        track = self._descriptor(name, parent)
        track.sibling_order_rank = self._tracks
        track.counter.unit = self._protos.CounterDescriptor.UNIT_COUNT
        return int(track.uuid)

    def begin(
        self,
        track: int,
        time_ns: int,
        name: str,
        category: str,
        notes: Mapping[str, int | str] | None = None,
        ends_flow: int | None = None,
    ) -> None:
        """Open a slice, in which a flow may end that an ``instant`` started."""
        event = self._named_event(track, time_ns, name, category, notes)
        event.type = self._protos.TrackEvent.TYPE_SLICE_BEGIN
        if ends_flow is not None:
            event.terminating_flow_ids.append(ends_flow)

    def end(self, track: int, time_ns: int) -> None:
        """Close the slice that was opened last on the track."""
        self._event(track, time_ns).type = self._protos.TrackEvent.TYPE_SLICE_END

    def instant(
        self, track: int, time_ns: int, name: str, category: str, starts_flow: int | None = None
    ) -> None:
        """Mark a moment, from which a flow may start."""
        event = self._named_event(track, time_ns, name, category, None)
        event.type = self._protos.TrackEvent.TYPE_INSTANT
        if starts_flow is not None:
            event.flow_ids.append(starts_flow)

    def count(self, track: int, time_ns: int, value: int) -> None:
        """Set a counter."""
        event = self._event(track, time_ns)
        event.type = self._protos.TrackEvent.TYPE_COUNTER
        event.counter_value = value

    def _descriptor(self, name: str, parent: int | None) -> Any:
        self._tracks += 1
        track = self._packet().track_descriptor
        track.uuid = self._tracks
        track.name = name
        if parent is not None:
            track.parent_uuid = parent
        return track

    def _named_event(
        self,
        track: int,
        time_ns: int,
        name: str,
        category: str,
        notes: Mapping[str, int | str] | None,
    ) -> Any:
        event = self._event(track, time_ns)
        packet = self._chunk.packet[-1]
        event.name_iid = self._interned(self._names, name, packet.interned_data.event_names)
        event.categories.append(category)
        for key, value in (notes or {}).items():
            note = event.debug_annotations.add()
            known = packet.interned_data.debug_annotation_names
            note.name_iid = self._interned(self._annotations, key, known)
            if isinstance(value, int):
                note.int_value = value
            else:
                note.string_value = value
        return event

    def _interned(self, table: dict[str, int], text: str, entries: Any) -> int:
        iid = table.get(text)
        if iid is None:
            iid = table[text] = len(table) + 1
            entry = entries.add()
            entry.iid = iid
            entry.name = text
        return iid

    def _event(self, track: int, time_ns: int) -> Any:
        packet = self._packet()
        packet.timestamp = time_ns
        packet.track_event.track_uuid = track
        return packet.track_event

    def _packet(self) -> Any:
        if len(self._chunk.packet) >= _PACKETS_PER_CHUNK:
            self._write_chunk()
        packet = self._chunk.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        flags = self._protos.TracePacket
        packet.sequence_flags = flags.SEQ_NEEDS_INCREMENTAL_STATE
        if self._is_first:
            packet.sequence_flags = flags.SEQ_INCREMENTAL_STATE_CLEARED
            self._is_first = False
        return packet

    def _write_chunk(self) -> None:
        # Serialized messages of one type may be appended to each other: repeated fields add up.
        self._file.write(self._chunk.SerializeToString())
        self._chunk = self._protos.Trace()
