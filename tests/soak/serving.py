"""``python -m tests.soak.serving``: clients ask a server for half an hour, and compare the answers.

A table as it goes, then the verdict, also as the exit code. Wrong are: any error, any answer that
differs from the one that its question gets alone, memory, files or threads of the server that grow,
requests that the server still has when all clients are gone, and processes that are left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from prometheus_client.parser import text_string_to_metric_families

from gapless.cli.serve_load import connect
from gapless.cli.server_process import ServerProcess
from tests.soak.serving_load import Counts, Question, answer_alone, ask_until

WINDOWS = 30
MIB = 1 << 20
VOCABULARY = 40_000  # of any model that is used here, at least
# Of the server, once its caches are warm: what may be added in all.
MOST_GROWTH = 1.03
MOST_GROWTH_MIB = 32
COLUMNS = "seconds answered aborted   tokens near-ties  wrong  RSS-MiB files threads running"


@dataclass(frozen=True)
class Window:
    """The server at the end of a part of the run."""

    seconds: float
    rss_bytes: int
    files: int
    threads: int
    running: float


def look(pid: int, url: str, start_s: float) -> Window:
    """The server's processes as they are now."""
    server = psutil.Process(pid)
    family = [server, *server.children(recursive=True)]
    return Window(
        seconds=time.monotonic() - start_s,
        rss_bytes=sum(each.memory_full_info().uss for each in family),
        files=sum(each.num_fds() for each in family),
        threads=sum(each.num_threads() for each in family),
        running=metric(url, "vllm:num_requests_running"),
    )


def metric(url: str, name: str) -> float:
    """One number of ``/metrics``."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics", timeout=30) as page:
        text = page.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                return float(sample.value)
    raise KeyError(name)


async def load(
    server: ServerProcess, clients: int, seconds: float, questions: int, seed: int
) -> tuple[Counts, list[Window]]:
    """Let the clients ask, and look at the server meanwhile."""
    draw = random.Random(seed)
    counts = Counts()
    windows: list[Window] = []
    async with connect(server.url) as client:
        known = await answer_alone(client, server.model, VOCABULARY, questions, draw)
        print(f"{len(known)} questions answered alone\n{COLUMNS}", flush=True)
        start_s = time.monotonic()
        end_s = start_s + seconds

        def is_over() -> bool:
            return time.monotonic() >= end_s

        def one(known: list[Question]) -> asyncio.Task[None]:
            own = random.Random(draw.random())
            return asyncio.create_task(ask_until(is_over, client, server.model, known, own, counts))

        tasks = [one(known) for _ in range(clients)]
        for number in range(WINDOWS):
            await asyncio.sleep(max(0.0, start_s + (number + 1) * seconds / WINDOWS
                                    - time.monotonic()))  # fmt: skip
            windows.append(await asyncio.to_thread(look, server.pid, server.url, start_s))
            print(row(counts, windows[-1]), flush=True)
        await asyncio.gather(*tasks)
    return counts, windows


def row(counts: Counts, window: Window) -> str:
    """A line of the table."""
    return (
        f"{window.seconds:7.0f} {counts.answered:8} {counts.aborted:7} {counts.tokens:8} "
        f"{counts.near_ties:9} {len(counts.wrong):6} {window.rss_bytes / MIB:8.0f} "
        f"{window.files:5} {window.threads:7} {window.running:7.0f}"
    )


def complaints(counts: Counts, windows: list[Window], url: str) -> list[str]:
    """What is wrong with the run, while the server is still there."""
    found = list(counts.wrong)
    if not counts.answered or not counts.aborted:
        found.append(f"only {counts.answered} answers and {counts.aborted} aborted requests")
    steady = windows[len(windows) // 4 :]
    third = len(steady) // 3
    early, late = steady[:third], steady[-third:]
    most = median(each.rss_bytes for each in early) * MOST_GROWTH + MOST_GROWTH_MIB * MIB
    now = median(each.rss_bytes for each in late)
    if now > most:
        found.append(f"memory grew to {now / MIB:.0f} MiB, over {most / MIB:.0f}")
    for name in ("files", "threads"):
        before = max(getattr(each, name) for each in early)
        after = max(getattr(each, name) for each in late)
        if after > before:
            found.append(f"{name} grew from {before} to {after}")
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        if left := metric(url, name):
            found.append(f"{name} is {left:.0f} after the last client is gone")
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.serving", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--minutes", type=float, default=30, help="how long (30)")
    parser.add_argument("--clients", type=int, default=64, help="how many at once (64)")
    parser.add_argument("--questions", type=int, default=32, help="different ones (32)")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices (1)")
    parser.add_argument("--json", type=Path, help="also write what was seen to this file")
    parser.add_argument("server", nargs="*", help="arguments of gapless serve, after --")
    given = parser.parse_args()
    arguments = [*given.server, "--max-num-seqs", str(given.clients)]
    if "--dtype" not in arguments:
        arguments += ["--dtype", "float32"]  # in which batches of any size round nearly alike
    if "--kv-cache-memory-bytes" not in arguments:
        # The system gives the cache's memory as it fills: small, it is full before growth counts.
        arguments += ["--kv-cache-memory-bytes", "1G"]
    server = ServerProcess(arguments, {}, lambda text: print(text, flush=True))
    server.wait_until_ready()
    print(f"{server.model} in {server.dtype}, ready after {server.ready_s:.0f} s", flush=True)
    family = psutil.Process(server.pid).children(recursive=True)
    try:
        counts, windows = asyncio.run(
            load(server, given.clients, 60 * given.minutes, given.questions, given.seed)
        )
        found = complaints(counts, windows, server.url)
    finally:
        server.stop()
    _, alive = psutil.wait_procs(family, timeout=10)
    found += [f"process {each.pid} is left" for each in alive]
    for complaint in found[:50]:
        print(f"WRONG: {complaint}")
    if given.json:
        summary = {
            "minutes": given.minutes,
            "clients": given.clients,
            "answered": counts.answered,
            "aborted": counts.aborted,
            "tokens": counts.tokens,
            "near_ties": counts.near_ties,
            "wrong": found,
        }
        given.json.write_text(json.dumps(summary, indent=2) + "\n")
    print("nothing wrong" if not found else f"{len(found)} things wrong")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
