"""Child processes that check operators, so that a crash or a hang costs one operator only."""

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
_START_LIMIT_S = 180


@dataclass
class _Child:
    process: subprocess.Popen[str]
    errors: IO[str]
    core: int
    operator: str | None = None
    deadline: float = 0.0


def checked(
    names: list[str], dtypes: list[str], samples: int, jobs: int, limit_s: float
) -> Iterator[dict[str, Any]]:
    """Each operator's result, in the order in which they end.

    One that takes longer than ``limit_s``, or whose process dies, is a result with the key
    ``died``, which says how.
    """
    cores = sorted(os.sched_getaffinity(0))
    queue = list(reversed(names))
    with selectors.DefaultSelector() as selector:
        children: list[_Child] = []

        def start(core: int) -> None:
            child = _started(core, dtypes, samples)
            children.append(child)
            selector.register(child.process.stdout, selectors.EVENT_READ, child)

        def stop(child: _Child) -> None:
            selector.unregister(child.process.stdout)
            children.remove(child)
            child.process.kill()
            child.process.wait()
            child.errors.close()

        try:
            for i in range(min(jobs, len(names))):
                start(cores[i % len(cores)])
            while children:
                for key, _ in selector.select(timeout=1.0):
                    child = key.data
                    line = child.process.stdout.readline()
                    if not line:
                        if died := _death(child, None):
                            yield died
                        stop(child)
                        if queue:
                            start(child.core)
                        continue
                    if line.strip() != "ready":
                        yield json.loads(line)
                    if queue:
                        _give(child, queue.pop(), limit_s)
                    else:
                        stop(child)
                for child in [c for c in children if c.deadline < time.monotonic()]:
                    if died := _death(child, limit_s):
                        yield died
                    stop(child)
                    if queue:
                        start(child.core)
        finally:
            for child in list(children):
                stop(child)


def _started(core: int, dtypes: list[str], samples: int) -> _Child:
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the child
    arguments = ["--dtypes", ",".join(dtypes), "--samples", str(samples)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.worker", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        bufsize=1,
        cwd=ROOT,
        env={
            **os.environ,
            "GAPLESS_DEVICE_CORES": f"{core}-{core}",
            "OMP_NUM_THREADS": "1",
            # PyTorch gives LAPACK's gelsy a pivot vector that nobody has written to, so that the
            # CPU does not agree with itself. With this both find the same bytes there.
            "MALLOC_PERTURB_": "165",
        },
    )
    return _Child(process, errors, core, None, time.monotonic() + _START_LIMIT_S)


def _give(child: _Child, name: str, limit_s: float) -> None:
    child.operator = name
    child.deadline = time.monotonic() + limit_s
    child.process.stdin.write(name + "\n")
    child.process.stdin.flush()


def _death(child: _Child, limit_s: float | None) -> dict[str, Any] | None:
    """What became of the operator that the child was at; raises where it never began."""
    child.errors.seek(0)
    tail = child.errors.read()[-2000:].strip()
    if child.operator is None:
        raise RuntimeError(f"a child process did not start:\n{tail}")
    if limit_s is None:
        status = child.process.wait()
        last = tail.splitlines()[-1] if tail else ""
        how = f"the process died with status {status}: {last}"
    else:
        how = f"not done within {limit_s:.0f} s"
    return {"operator": child.operator, "outcomes": [], "departures": {}, "died": how[:300]}
