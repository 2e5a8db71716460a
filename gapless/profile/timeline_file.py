"""The file of a timeline: one per process and recording, ``timeline-PID-N.npz``.

It is an archive of numpy arrays, compressed, of which none is a pickle:

- ``header``: bytes, a JSON object in UTF-8: format, version, process, names and counts;
- ``work``: int64 ``[n, 9]``, see ``WORK_COLUMNS``;
- ``ranges``: int64 ``[n, 5]``, see ``RANGE_COLUMNS``;
- ``sha256``: 32 bytes, the digest of those three, see ``_digest``.

A file appears only when it is whole, and never in place of another.
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from gapless.profile.ranges import HostRanges, HostThread
from gapless.profile.timeline import Timeline, TimelineError

FORMAT = "gapless-timeline"
FORMAT_VERSION = 2
PREFIX = "timeline-"
SUFFIX = ".npz"
_ARRAYS = ("header", "work", "ranges", "sha256")
# A header is a few names; more than this is not one of ours.
_MAX_HEADER_BYTES = 64 << 20
_MODE = 0o666  # less what the process's umask takes away


def save(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write a timeline to this file, or replace the one that is there.

    Raises:
        OSError: the file cannot be written.
    """
    target = Path(path)
    partial = _write_partial(timeline, target.parent, target.name)
    try:
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def save_in(timeline: Timeline, folder: str | os.PathLike[str]) -> Path:
    """Write a timeline to a new file in this folder, named by its process, and say which.

    Raises:
        OSError: the file cannot be written.
    """
    partial = _write_partial(timeline, Path(folder), PREFIX)
    number = 0
    try:
        while True:
            target = Path(folder) / f"{PREFIX}{timeline.pid}-{number}{SUFFIX}"
            try:
                _publish(partial, target)
            except FileExistsError:
                number += 1
            else:
                return target
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> Timeline:
    """Read a file that ``save`` wrote; nothing in it is executed.

    Raises:
        OSError: the file is not there or cannot be read.
        TimelineError: the file is broken, changed, not a timeline, or of another version.
    """
    with Path(path).open("rb") as file:
        try:
            # Never pickled: a timeline may come from somebody else's machine.
            with np.load(file, allow_pickle=False) as archive:
                header = _read_header(archive["header"], path)
                raw, work, columns, digest = (archive[name] for name in _ARRAYS)
        except TimelineError:
            raise
        except Exception as error:  # whatever zipfile, zlib, numpy and json make of damage
            # numpy takes what it does not know for a pickle, and advises to load that.
            why = "" if "pickle" in str(error) else f" ({error})"
            raise TimelineError(
                f"{os.fspath(path)} is not a whole timeline{why}; record it again"
            ) from error
    if digest.tobytes() != _digest(raw, work, columns):
        raise TimelineError(
            f"{os.fspath(path)} was changed after it was recorded: its checksum differs; "
            "record it again"
        )
    return _from_header(header, work, columns, path)


def _publish(partial: Path, target: Path) -> None:
    """Give the file its name, which no other may have: containers may share a folder and a pid."""
    try:
        os.link(partial, target)  # unlike a rename this refuses to replace
    except FileExistsError:
        raise
    except OSError:  # a file system without links; the name is taken first, and empty for a moment
        target.open("xb").close()
        partial.replace(target)


def _write_partial(timeline: Timeline, folder: Path, name: str) -> Path:
    described = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "pid": timeline.pid,
        "process_name": timeline.process_name,
        "realtime_offset_ns": timeline.realtime_offset_ns,
        "boot_id": timeline.boot_id,
        "tokens": timeline.tokens,
        "names": timeline.names,
        "dropped_work": timeline.dropped_work,
        "range_names": timeline.ranges.names,
        "threads": [(thread.native_id, thread.name) for thread in timeline.ranges.threads],
        "dropped_ranges": timeline.ranges.dropped,
    }
    header = np.frombuffer(json.dumps(described).encode(), dtype=np.uint8)
    work, columns = timeline.work, timeline.ranges.columns
    handle, partial = tempfile.mkstemp(prefix=f".{name}.", suffix=".partial", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            _write(file, header, work, columns)
            os.fchmod(file.fileno(), _MODE & ~_umask())
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    return Path(partial)


def _write(
    file: BinaryIO,
    header: npt.NDArray[np.uint8],
    work: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
) -> None:
    digest = np.frombuffer(_digest(header, work, columns), np.uint8)
    np.savez_compressed(file, header=header, work=work, ranges=columns, sha256=digest)


def _umask() -> int:
    """The process's umask, read without changing it, which other threads would notice."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o077


def _digest(*arrays: npt.NDArray[np.uint8] | npt.NDArray[np.int64]) -> bytes:
    """SHA-256 of header, work and ranges in this order, each after its type and shape."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{list(array.shape)}\n".encode())
        digest.update(array.tobytes())
    return digest.digest()


def _read_header(raw: npt.NDArray[np.uint8], path: str | os.PathLike[str]) -> dict[str, object]:
    if raw.dtype != np.uint8 or raw.nbytes > _MAX_HEADER_BYTES:
        raise TimelineError(f"{os.fspath(path)} has no timeline header; record it again")
    header = json.loads(raw.tobytes())
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise TimelineError(f"{os.fspath(path)} is not a {FORMAT} file; name another")
    if header.get("version") != FORMAT_VERSION:
        raise TimelineError(
            f"{os.fspath(path)} is a timeline of version {header.get('version')}; this gapless "
            f"reads version {FORMAT_VERSION}: use the gapless that recorded it, or record it again"
        )
    return header


def _from_header(
    header: dict[str, object],
    work: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    path: str | os.PathLike[str],
) -> Timeline:
    def integer(key: str) -> int:
        value = header[key]
        if type(value) is not int:
            raise TypeError(f"{key} is {value!r}, not an integer")
        return value

    def count(key: str) -> int:
        value = integer(key)
        if value < 0:
            raise ValueError(f"{key} is {value}, below 0")
        return value

    def strings(key: str) -> tuple[str, ...]:
        value = header[key]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise TypeError(f"{key} is not a list of strings")
        return tuple(value)

    try:
        pairs = cast(list[tuple[int, str]], header["threads"])
        threads = tuple(HostThread(int(native_id), str(name)) for native_id, name in pairs)
        return Timeline(
            work=work,
            names=strings("names"),
            ranges=HostRanges(columns, strings("range_names"), threads, count("dropped_ranges")),
            dropped_work=count("dropped_work"),
            pid=count("pid"),
            process_name=str(header["process_name"]),
            realtime_offset_ns=integer("realtime_offset_ns"),
            boot_id=str(header["boot_id"]),
            tokens=count("tokens"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TimelineError(
            f"{os.fspath(path)} contradicts itself ({error}); record it again"
        ) from error
