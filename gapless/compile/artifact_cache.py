"""Programs on disk: each compiled once, by one process, and checked whenever it is loaded."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from gapless.cache.entries import cache_root, check, obtain, open_root
from gapless.compile.compiler import SHARED_OBJECT, compile_into, environment, key_of
from gapless.compile.errors import ProgramMissing
from gapless.compile.host_graph import HostGraph, Layout
from gapless.compile.mode import MODE_VARIABLE
from gapless.errors import UsageError

FOLDER = "programs"
LIMIT_VARIABLE = "GAPLESS_PROGRAM_CACHE_BYTES"
DEFAULT_LIMIT_BYTES = 4 << 30


def programs_root() -> Path:
    """The folder of all artifacts."""
    return cache_root() / FOLDER


def obtain_artifact(
    graph: HostGraph, may_compile: bool = True, name: str = "", root: Path | None = None
) -> tuple[Path, str, bool]:
    """The shared object of the graph's program, its key, and whether the cache held it.

    Raises:
        ProgramMissing: it does not, and the program may not be compiled.
        CacheError: the cache cannot be used.
        UsageError: a setting has a value that means nothing.
    """
    key = key_of(graph)
    open_root(cache_root() if root is None else root.parent)
    root = programs_root() if root is None else root
    shapes = ", ".join(_described(each) for each in graph.operands)
    source = {"key": key, "operands": shapes, "made by": ", ".join(environment())}
    trouble = check(root / key, source)
    was_cached = trouble is None
    limit = limit_bytes()
    if not may_compile and not was_cached:
        if (root / key).exists():
            raise ProgramMissing(
                f"the program for operands of shapes {shapes} in {root / key} is broken "
                f"({trouble}), and {MODE_VARIABLE}=never; run once without it, which builds the "
                "program again, or unset it"
            )
        raise ProgramMissing(
            f"no program for operands of shapes {shapes} in {root}, and {MODE_VARIABLE}=never; "
            f"run once without it where the shapes are the same, or unset it"
        )

    def build(folder: Path) -> None:
        what = f"program {name} {key[:8]} for {_shortened(shapes)}"
        _tell(f"compiling {what}")
        start_s = time.monotonic()
        compile_into(graph, folder)
        _tell(f"compiled {what} in {time.monotonic() - start_s:.0f} s")

    entry = obtain(key, source, build, _tell, root)
    os.utime(entry)  # what was used last is evicted last
    if not was_cached:
        evict(root, limit, keep=key)
    return entry / SHARED_OBJECT, key, was_cached


def _described(operand: Layout) -> str:
    return f"{str(operand.dtype).removeprefix('torch.')}{list(operand.size)}"


def _shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[:limit].rsplit(", ", 1)[0] + ", ..."


def limit_bytes() -> int:
    """``GAPLESS_PROGRAM_CACHE_BYTES``, or 4 GiB.

    Raises:
        UsageError: it is not a number.
    """
    text = os.environ.get(LIMIT_VARIABLE, "")
    if text and not text.isdigit():
        raise UsageError(f"{LIMIT_VARIABLE}={text}: give a number of bytes, or unset it")
    return int(text) if text else DEFAULT_LIMIT_BYTES


def evict(root: Path, limit: int, keep: str = "") -> list[str]:
    """Remove the artifacts that were used least recently until the rest fits; their keys."""
    entries = []
    for path in root.iterdir():
        if path.is_dir() and not path.name.startswith("."):
            size = sum(each.stat().st_size for each in path.iterdir())
            entries.append((path.stat().st_mtime, size, path))
    total = sum(size for _, size, _ in entries)
    removed = []
    for _, size, path in sorted(entries):
        if total <= limit:
            break
        if path.name == keep:
            continue
        shutil.rmtree(path, ignore_errors=True)
        total -= size
        removed.append(path.name)
    return removed


def _tell(text: str) -> None:
    print(f"gapless: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr)
