"""``python -m tests.conformance``: check operators, print a table, fail on the unexplained."""

import argparse
import fnmatch
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from . import reasons as known
from .pool import checked
from .report import line, summary, table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="operators, as in 'nn.*'")
    parser.add_argument("--dtypes", help="such as float32,int64; 'all' for every one")
    parser.add_argument("--samples", type=int, default=12, help="per check and dtype (12)")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="the I-th of N parts")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit", type=float, default=300, help="seconds per operator (300)")
    parser.add_argument("--json", type=Path, default=Path("build/conformance.json"))
    parser.add_argument("--resume", action="store_true", help="skip what the JSON file holds")
    parser.add_argument("--quiet", action="store_true", help="show failures only")
    return parser.parse_args()


def _names(options: argparse.Namespace) -> list[str]:
    from .catalogue import operators

    names = list(operators())
    if options.only:
        names = [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in options.only)]
        if not names:
            sys.exit(f"no operator is called {' or '.join(options.only)}")
    part, _, parts = options.shard.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        sys.exit(f"--shard {options.shard}: give it as I/N with I from 1 to N, such as 1/4")
    return names[int(part) - 1 :: int(parts)]


def _dtypes(options: argparse.Namespace) -> list[str]:
    from .catalogue import DTYPES, MORE_DTYPES
    from .checks import dtype_name

    every = [dtype_name(dtype) for dtype in (*DTYPES, *MORE_DTYPES)]
    if options.dtypes is None:
        return every[: len(DTYPES)]
    wanted = every if options.dtypes == "all" else options.dtypes.split(",")
    for dtype in wanted:
        if dtype not in every:
            sys.exit(f"--dtypes {dtype}: choose from {', '.join(every)}")
    return wanted


def main() -> int:
    """The exit status: 0 where every failure is explained and no explanation is stale."""
    options = _options()
    names, dtypes = _names(options), _dtypes(options)
    results: list[dict[str, Any]] = []
    if options.resume and options.json.exists():
        kept = json.loads(options.json.read_text())
        if (kept["dtypes"], kept["samples"]) != (dtypes, options.samples):
            sys.exit(f"{options.json} was made with other dtypes or samples: leave out --resume")
        results = [result for result in kept["results"] if result["operator"] in set(names)]
    done = {result["operator"] for result in results}
    reasons = known.load()
    began = time.monotonic()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    todo = [name for name in names if name not in done]
    written = began
    for result in checked(todo, dtypes, options.samples, options.jobs, options.limit):
        results.append(result)
        if not options.quiet or known.failures_of(result):
            at = f"[{len(results)}/{len(names)} {time.monotonic() - began:.0f} s]"
            print(at, line(result), flush=True)
        if time.monotonic() - written > 10:
            _write(options.json, dtypes, options.samples, results)
            written = time.monotonic()
    _write(options.json, dtypes, options.samples, results)
    print(table(summary(results)))
    new, old = known.unexplained(results, reasons), known.stale(results, reasons)
    for text in new:
        print("UNEXPLAINED", text)
    for text in old:
        print("STALE", text)
    print(f"{len(new)} unexplained, {len(old)} stale; {time.monotonic() - began:.0f} s")
    return 1 if new or old else 0


def _write(path: Path, dtypes: list[str], samples: int, results: list[dict[str, Any]]) -> None:
    document = {
        "dtypes": dtypes,
        "samples": samples,
        "summary": summary(results),
        "results": sorted(results, key=lambda result: result["operator"]),
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1))
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
