"""What the cache holds: listed, verified, removed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gapless.cache.entries import MANIFEST, cache_root, check, open_root
from gapless.errors import UsageError

PROGRAMS = "programs"
KINDS = ("model", "program")


@dataclass(frozen=True)
class Entry:
    """One converted model or compiled program.

    Attributes:
        kind: ``model`` or ``program``.
        name: of its folder; a program's is its key.
        path: the folder.
        size_bytes: of all its files.
        used_s: when it was made or used last, in seconds since 1970.
        source: what it says that it was made from; empty where that cannot be read.
    """

    kind: str
    name: str
    path: Path
    size_bytes: int
    used_s: float
    source: dict[str, str]


def entries(root: Path | None = None) -> list[Entry]:
    """All entries, models first, what was used last first among each kind.

    Args:
        root: the cache folder; ``cache_root()`` by default. One that is not there has no entries.

    Raises:
        CacheError: others may write to the folder.
    """
    root = cache_root() if root is None else root
    found: list[Entry] = []
    if not root.exists():
        return found
    open_root(root)
    for kind, folder in (("model", root), ("program", root / PROGRAMS)):
        if not folder.is_dir():
            continue
        found += [
            _entry(kind, path)
            for path in folder.iterdir()
            if path.is_dir() and not path.name.startswith(".") and path.name != PROGRAMS
        ]
    return sorted(found, key=lambda each: (each.kind, -each.used_s))


def trouble_with(entry: Entry) -> str | None:
    """What is wrong with an entry, in a few words; None if it is whole. Reads every byte."""
    return check(entry.path, entry.source)


def select(found: list[Entry], names: list[str], kind: str | None = None) -> list[Entry]:
    """Those of a kind, and of these the ones whose name begins with one of ``names``, if given.

    Raises:
        UsageError: a name fits none of them.
    """
    of_kind = [each for each in found if kind in (None, each.kind)]
    if not names:
        return of_kind
    for name in names:
        if not any(each.name.startswith(name) for each in of_kind):
            raise UsageError(
                f"the cache has no {kind or 'entry'} whose name begins with {name!r}; "
                "gapless cache list shows what there is"
            )
    return [each for each in of_kind if each.name.startswith(tuple(names))]


def remove(entry: Entry) -> bool:
    """Remove an entry; false, and nothing done, where another process is building it right now."""
    with _locked(entry) as is_ours:
        if is_ours:
            shutil.rmtree(entry.path, ignore_errors=True)
        return is_ours


def _entry(kind: str, path: Path) -> Entry:
    size_bytes, used_s = 0, 0.0
    with contextlib.suppress(OSError):  # somebody may be removing it
        used_s = path.stat().st_mtime
        size_bytes = sum(each.stat().st_size for each in path.iterdir() if each.is_file())
    source: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        read = json.loads((path / MANIFEST).read_text())["source"]
        source = {str(key): str(value) for key, value in read.items()}
    return Entry(kind, path.name, path, size_bytes, used_s, source)


@contextlib.contextmanager
def _locked(entry: Entry) -> Iterator[bool]:
    # The lock that who builds the entry holds.
    with (entry.path.parent / f".{entry.name}.lock").open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
