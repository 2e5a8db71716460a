"""A folder of entries in which a broken entry is noticed and never used.

An entry is built in a temporary folder beside its place and renamed into it, so a half-written one
never has its name. Its manifest, written last, lists every file with size and SHA-256, and where
the entry came from; all of it is checked whenever the entry is opened.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from gapless.errors import GaplessError

MANIFEST = "manifest.json"
_MANIFEST_VERSION = 1
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH

Notify = Callable[[str], None]


class CacheError(GaplessError):
    """The cache folder cannot be used: unsafe permissions, not writable, or the disk is full."""


@dataclass(frozen=True)
class FileRecord:
    """One file of an entry, as it was when the entry was built."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What an entry consists of and what it was made from."""

    version: int
    source: Mapping[str, str]
    files: tuple[FileRecord, ...]

    def to_json(self) -> str:
        """The manifest as it is stored."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read a stored manifest.

        Raises:
            ValueError: it is not a manifest of this version.
        """
        try:
            data = json.loads(text)
            files = tuple(FileRecord(**record) for record in data["files"])
            manifest = cls(data["version"], dict(data["source"]), files)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a manifest: {error}") from error
        if manifest.version != _MANIFEST_VERSION:
            raise ValueError(f"manifest version {manifest.version}, expected {_MANIFEST_VERSION}")
        return manifest


def cache_root() -> Path:
    """``GAPLESS_CACHE``, else ``$XDG_CACHE_HOME/gapless``, else ``~/.cache/gapless``."""
    if chosen := os.environ.get("GAPLESS_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gapless"


def open_root(root: Path) -> Path:
    """Make the cache folder if need be and check that only this user can write to it.

    What is loaded from here is trusted, so a folder that others may write to is refused.

    Raises:
        CacheError: it is not a folder, not this user's, writable by others, or cannot be made.
    """
    remedy = "set GAPLESS_CACHE to a folder of your own"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.stat()
    except (FileExistsError, NotADirectoryError) as error:
        raise CacheError(f"the cache {root} is not a folder; {remedy}") from error
    except OSError as error:
        raise CacheError(f"the cache {root} cannot be made: {error.strerror}; {remedy}") from error
    if status.st_uid != os.getuid():
        raise CacheError(
            f"the cache {root} belongs to user {status.st_uid}, you are {os.getuid()}; {remedy}"
        )
    if status.st_mode & _OTHERS_MAY_WRITE:
        raise CacheError(
            f"the cache {root} has mode {stat.S_IMODE(status.st_mode):o} and others may write to "
            f"it; run chmod go-w on it, or {remedy}"
        )
    return root


def obtain(
    name: str,
    source: Mapping[str, str],
    build: Callable[[Path], None],
    notify: Notify,
    root: Path | None = None,
) -> Path:
    """The folder of entry ``name``, built now if it is missing, broken or made from another source.

    Args:
        name: a file name; the entry's place in the cache.
        source: what it is made from; an entry made from anything else is rebuilt.
        build: writes the entry's files into the empty folder that it is given.
        notify: is told, in one line each, of a rebuild and of waiting for another process.
        root: the cache folder; ``cache_root()`` by default.

    Raises:
        CacheError: the cache cannot be used.
    """
    root = open_root(cache_root() if root is None else root)
    entry = root / name
    with _writing_to(root), _lock(root / f".{name}.lock", notify):
        trouble = check(entry, source)
        if trouble is None:
            return entry
        if entry.exists():
            notify(f"the cached {entry} is not usable ({trouble}); building it again")
        _remove_leftovers(root, name)
        staging = Path(tempfile.mkdtemp(prefix=f".{name}.building-", dir=root))
        try:
            build(staging)
            _seal(staging, source)
            if entry.exists():
                shutil.rmtree(entry)
            staging.rename(entry)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return entry


def check(entry: Path, source: Mapping[str, str]) -> str | None:
    """What is wrong with an entry, in a few words; None if it is whole and made from ``source``.

    Reads every byte: about 0.2 s for 270 MB once the file is in the page cache.
    """
    try:
        manifest = Manifest.from_json((entry / MANIFEST).read_text())
    except FileNotFoundError:
        return "it has no manifest" if entry.exists() else "it does not exist"
    except (OSError, ValueError) as error:
        return f"its manifest cannot be read: {error}"
    if dict(manifest.source) != dict(source):
        return "it was made from another source or by another version"
    present = {path.name for path in entry.iterdir()} - {MANIFEST}
    listed = {record.name for record in manifest.files}
    if present != listed:
        return f"its files are not those listed: {', '.join(sorted(present ^ listed))}"
    for record in manifest.files:
        path = entry / record.name
        if path.is_symlink() or not path.is_file():
            return f"{record.name} is not a plain file"
        size_bytes = path.stat().st_size
        if size_bytes != record.size_bytes:
            return f"{record.name} has {size_bytes} bytes instead of {record.size_bytes}"
        if sha256_of(path) != record.sha256:
            return f"the checksum of {record.name} is wrong"
    return None


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _seal(staging: Path, source: Mapping[str, str]) -> None:
    files = []
    for path in sorted(staging.iterdir()):
        files.append(FileRecord(path.name, path.stat().st_size, sha256_of(path)))
        _flush(path)
    manifest = staging / MANIFEST
    manifest.write_text(Manifest(_MANIFEST_VERSION, source, tuple(files)).to_json())
    _flush(manifest)
    staging.chmod(0o700)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(root: Path, name: str) -> None:
    # Under the lock no other process builds this entry, so what lies here was left by one killed.
    for path in root.glob(f".{name}.building-*"):
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _lock(path: Path, notify: Notify) -> Iterator[None]:
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            notify(f"another process holds the cache's entry ({path}); waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield  # closing the file releases the lock, as does the end of the process


@contextlib.contextmanager
def _writing_to(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(root).free
            raise CacheError(
                f"the disk of the cache {root} is full ({free / 1e6:.0f} MB free); "
                "free some space or set GAPLESS_CACHE to another disk"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise CacheError(
                f"the cache {root} cannot be written: {error.strerror}; "
                "set GAPLESS_CACHE to a folder of your own"
            ) from error
        raise
