"""The process that does the work, and prints what it counted, one line of JSON per window."""

import faulthandler
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch

from gapless import _C
from tests.random.check import check, program_of
from tests.soak.errors import ErrorInjector

REPLAYS = 200
STREAMS = 4


@dataclass
class Window:
    """What was counted by the end of a window; memory in bytes, with the device idle."""

    seconds: float
    rounds: int
    programs: int
    replays: int
    errors_injected: int
    errors_reported: int
    watchdog_reports: int
    rss: int
    allocated: int
    reserved: int
    blocks: int


class Worker:
    """Does random things until the time is over."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.streams = [torch.Stream("gapless") for _ in range(STREAMS)]
        self.errors = ErrorInjector(self.random, self.streams)
        self.counter = torch.zeros(64, dtype=torch.long, device="gapless")
        self.graph = torch.accelerator.Graph()
        self.graph.capture_begin()
        self.counter += 1
        self.doubled = self.counter * 2
        self.graph.capture_end()
        self.programs = self.replays = self.rounds = 0

    def program(self) -> None:
        """A random program against the CPU."""
        self.programs += 1
        check(program_of(self.seed * 10_000_000 + self.programs))

    def replay(self) -> None:
        """Replays on several streams, with copies to the host beside them."""
        host = torch.empty(64, dtype=torch.long, pin_memory=True)
        last = torch.accelerator.current_stream()
        for _ in range(4):
            stream = self.random.choice(self.streams)
            stream.wait_stream(last)
            last = stream
            with stream:
                for _ in range(REPLAYS // 4):
                    self.graph.replay()
                host.copy_(self.doubled, non_blocking=True)
        last.synchronize()
        self.replays += REPLAYS
        if host.tolist() != [2 * self.replays] * 64:
            raise AssertionError(f"after {self.replays} replays the graph gave {host[0].item()}")

    def allocate(self) -> None:
        """Memory of many sizes, freed in the middle of other streams' use."""
        kept = []
        for number in range(100):
            with self.random.choice(self.streams) as _:
                made = torch.full((self.random.randrange(1, 100_000),), number, device="gapless")
                user = self.random.choice(self.streams)
                user.wait_stream(torch.accelerator.current_stream())
            with user:
                kept.append((made[:3] + 1, number))
            if len(kept) > 20:
                kept.pop(self.random.randrange(len(kept)))
        torch.accelerator.synchronize()
        for tensor, number in kept:
            if tensor.tolist() != [number + 1] * len(tensor):
                raise AssertionError(f"memory {number} was handed out while it was used")

    def round(self) -> None:
        """One thing of each kind, programs more often, in random order."""
        things: list[Callable[[], None]] = [self.program] * 6
        things += [self.errors.inject] * 2 + [self.replay, self.allocate]
        self.random.shuffle(things)
        for thing in things:
            thing()
        self.rounds += 1

    def window(self, seconds: float) -> Window:
        """What was counted so far, with nothing left running and the caches empty.

        Each stream's cache grows to the most that a program ever needed there, which takes long and
        says nothing of leaks.
        """
        torch.accelerator.synchronize()
        gc.collect()
        torch.accelerator.empty_cache()
        torch.accelerator.empty_host_cache()
        stats = torch.gapless.memory_stats()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return Window(
            seconds=seconds,
            rounds=self.rounds,
            programs=self.programs,
            replays=self.replays,
            errors_injected=self.errors.injected,
            errors_reported=self.errors.reported,
            watchdog_reports=_C.watchdog_reports(),
            rss=pages * os.sysconf("SC_PAGE_SIZE"),
            allocated=stats["allocated_bytes.all.current"],
            reserved=stats["reserved_bytes.all.current"],
            blocks=stats["active.all.current"],
        )


def main() -> None:
    """``worker SECONDS WINDOW_SECONDS SEED HANG_SECONDS``."""
    seconds, window_s, seed, hang_s = (float(argument) for argument in sys.argv[1:])
    sys.setswitchinterval(1e-4)
    worker = Worker(int(seed))
    start = last = time.monotonic()
    while last - start < seconds:
        faulthandler.dump_traceback_later(hang_s, exit=True)
        worker.round()
        faulthandler.cancel_dump_traceback_later()
        now = time.monotonic()
        if now - last >= window_s or now - start >= seconds:
            last = now
            print(json.dumps(asdict(worker.window(now - start))), flush=True)


if __name__ == "__main__":
    main()
