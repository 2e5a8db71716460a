"""``python -m tests.random``: many programs, or one again.

The exit code is 1 if a program's results differed, or it failed.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass

import torch

from tests.random import instructions
from tests.random.check import check, program_of

MOST_FAILURES = 10
PROGRESS_S = 10.0


@dataclass
class Options:
    """The command line."""

    programs: int
    start: int
    seed: int | None
    forget: frozenset[type]


def parse(arguments: list[str]) -> Options:
    """Reads the command line.

    Raises:
        SystemExit: it is wrong; the text says what.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.random", description=__doc__)
    parser.add_argument("--programs", type=int, default=20_000, help="how many (20000)")
    parser.add_argument("--start", type=int, default=0, help="the first one's seed (0)")
    parser.add_argument("--seed", type=int, help="run this one alone, and list it")
    parser.add_argument(
        "--forget",
        choices=["Wait", "SyncEvent", "SyncStream", "SyncDevice"],
        action="append",
        default=[],
        help="leave these instructions out on the device, to see that it is noticed",
    )
    given = parser.parse_args(arguments)
    if given.programs < 1:
        parser.error(f"--programs {given.programs}: at least 1")
    forget = frozenset(getattr(instructions, name) for name in given.forget)
    return Options(given.programs, given.start, given.seed, forget)


def repeat_command(seed: int, forget: frozenset[type]) -> str:
    """What runs this program again: the number of devices and the driver matter."""
    settings = [
        f"{name}={os.environ[name]} "
        for name in ("GAPLESS_DRIVER", "GAPLESS_NUM_DEVICES")
        if os.environ.get(name)
    ]
    options = "".join(f" --forget {kind.__name__}" for kind in forget)
    return f"{''.join(settings)}python -m tests.random --seed {seed}{options}"


def run(options: Options) -> int:
    """Runs them and prints progress; returns how many failed."""
    seeds = (
        [options.seed]
        if options.seed is not None
        else range(options.start, options.start + options.programs)
    )
    started = last = time.monotonic()
    failed = 0
    print(f"{len(seeds)} programs on {torch.accelerator.device_count()} device(s)", flush=True)
    for done, seed in enumerate(seeds):
        program = program_of(seed)
        if options.seed is not None:
            print(program.listing())
        try:
            check(program, options.forget)
        except Exception as error:
            failed += 1
            print(f"FAILED seed {seed}: {type(error).__name__}: {error}")
            print(f"  again: {repeat_command(seed, options.forget)}", flush=True)
            if failed == MOST_FAILURES:
                print(f"that makes {failed}; the rest is left")
                break
        now = time.monotonic()
        if now - last >= PROGRESS_S:
            last = now
            rate = (done + 1) / (now - started)
            left_s = (len(seeds) - done - 1) / rate
            print(
                f"{done + 1:6d} done, {failed} failed, {rate:.0f}/s, about {left_s:.0f} s left",
                flush=True,
            )
    print(f"{failed} of {done + 1} failed in {time.monotonic() - started:.0f} s", flush=True)
    return failed


def main() -> None:
    """The command."""
    # The gates take Python's lock on the streams' threads; they should not wait 5 ms for it.
    sys.setswitchinterval(1e-4)
    sys.exit(1 if run(parse(sys.argv[1:])) else 0)


if __name__ == "__main__":
    main()
