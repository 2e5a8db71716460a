"""``python -m tests.soak``: a table as it goes, then the verdict, also as the exit code."""

import argparse
import json
import os
import subprocess
import sys

from tests.soak.verdict import FEWEST_WINDOWS, LEAST_RSS_S, MIB, complaints
from tests.soak.worker import Window

WINDOWS = 40
HANG_S = 120
WATCHDOG_S = "20"
COLUMNS = (
    ("seconds", "seconds", 1),
    ("rounds", "rounds", 1),
    ("programs", "programs", 1),
    ("replays", "replays", 1),
    ("injected", "errors_injected", 1),
    ("reported", "errors_reported", 1),
    ("stuck", "watchdog_reports", 1),
    ("RSS MiB", "rss", MIB),
    ("reserved MiB", "reserved", MIB),
    ("in tensors", "allocated", 1),
)


def row(window: Window) -> str:
    """The window as a line of the table."""
    return " ".join(
        f"{getattr(window, field) / unit:{max(8, len(title))}.0f}" for title, field, unit in COLUMNS
    )


def run(seconds: float, seed: int) -> list[str]:
    """Runs the worker and prints its windows; returns what is wrong."""
    window_s = seconds / max(WINDOWS, FEWEST_WINDOWS)
    print(" ".join(f"{title:>8}" for title, _, _ in COLUMNS), flush=True)
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.soak.worker"]
        + [str(argument) for argument in (seconds, window_s, seed, HANG_S)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "GAPLESS_WATCHDOG_S": WATCHDOG_S},
    )
    windows: list[Window] = []
    assert worker.stdout is not None
    for line in worker.stdout:
        windows.append(Window(**json.loads(line)))
        print(row(windows[-1]), flush=True)
    code = worker.wait()
    if code:
        return [f"the worker ended with code {code}; its last words are above"]
    return complaints(windows)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="how long (3600)")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices (1)")
    given = parser.parse_args()
    if given.seconds < 5:
        parser.error(f"--seconds {given.seconds}: at least 5, to have windows to compare")
    found = run(given.seconds, given.seed)
    for complaint in found:
        print(f"WRONG: {complaint}")
    if given.seconds < LEAST_RSS_S:
        print(f"resident memory is judged from {LEAST_RSS_S} seconds on")
    print("failed" if found else "clean: no leak, no hang, every error reported once")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
