"""Tokens per second of a served model: this, upstream's CPU backend, llama.cpp; whole runs timed.

    python benchmarks/serving.py --peer --json serving.json

Every configuration has a process of its own, which lives while they take turns; a run is timed
from the first request to the last token, with prompts of 30 tokens and 128 new ones for each. The
load of the machine is stated, and every repeat is shown. After the turns of a batch each
asynchronous engine is recorded, for the idle gaps, and its step compared with the same step alone.
Upstream compiles the model when it starts, in four of its six configurations, which takes minutes
for each on two cores; ``--only`` leaves configurations out.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from report import Measurement, load, store
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from serving_configurations import Configuration, Engine, ours, threads, upstream
from serving_peer import FOLDER, peer_python

from gapless.models.load import choose_dtype
from gapless.models.smollm2 import obtain_smollm2

BATCHES = (1, 8, 32)
LARGE = 256
PROMPT = 30
TOKENS = 128
REPEATS = 3
WARMUP_TOKENS = 4
_PAGE = 128  # tokens
_EXAMINED = 16  # tokens at least, so that there are steps without prompts
_WIDTH = 110
_QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}


@dataclass
class Participant:
    """One column of the comparison, and what was measured of it by batch."""

    name: str
    is_peer: bool
    run: Callable[[dict[str, int]], dict[str, float]]
    end: Callable[[], None]
    runs: dict[int, list[dict[str, float]]] = field(default_factory=dict)
    device: dict[int, dict[str, float]] = field(default_factory=dict)  # what examine() found

    def value(self, batch: int, figure: str) -> float:
        """The median of the repeats."""
        return median(each[figure] for each in self.runs[batch])

    def repeats(self, batch: int, figure: str) -> tuple[float, ...]:
        """All of them, in their order."""
        return tuple(each[figure] for each in self.runs[batch])


def main() -> None:
    """Measure, print, and write JSON where ``--json FILE`` asks for it."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    load_before = load()
    console = Console(stderr=True, highlight=False)
    say: Callable[[str], None] = console.print
    dtype = choose_dtype(options.dtype, torch.device("gapless"))
    model = options.model or obtain_smollm2(say)
    batches = tuple(options.batch or (*BATCHES, *((LARGE,) if options.large else ())))
    say(f"{model} in {dtype.name} ({dtype.why}), load {load_before:.1f}")
    participants: list[Participant] = []
    with tempfile.TemporaryDirectory(prefix="gapless-serving-") as folder:
        try:
            for configuration in chosen(options, say):
                participants.append(start(configuration, model, dtype.name, batches, folder, say))
            if options.llama_cpp is not None:
                participants += start_llama_cpp(options, dtype.name, Path(folder), say)
            take_turns(participants, batches, options, say)
        finally:
            for participant in participants:
                participant.end()
    if not participants:
        sys.exit("nothing takes part: --only matches no name")
    printed = Console(highlight=False)
    printed.width = max(_WIDTH, printed.width)
    printed.print(
        f"\nServing {Path(model).name}, {dtype.name}, prompts of {options.prompt} tokens, "
        f"{options.tokens} new; medians, and every repeat",
        soft_wrap=True,
    )
    for batch in batches:
        print_batch(printed, participants, batch)
        print_device(printed, participants, batch)
    store(measurements(participants, batches), load_before, printed, has_device=False)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", action="store_true", help="upstream's CPU backend as well")
    parser.add_argument(
        "--peer-python",
        type=Path,
        help="upstream's interpreter; by default build/upstream's, which is made at first use",
    )
    parser.add_argument("--llama-cpp", type=Path, help="path of the program llama-batched-bench")
    parser.add_argument("--large", action="store_true", help=f"batch {LARGE} as well")
    parser.add_argument("--batch", type=int, action="append", help="only this one; may be repeated")
    parser.add_argument(
        "--only",
        action="append",
        help="leave out the configurations without this in their names; may be repeated. They are "
        + "; ".join(each.name for each in [*ours(2), *upstream(2, Path())]),
    )
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="new tokens of each")
    parser.add_argument(
        "--repeats",
        type=int,
        default=REPEATS,
        help="runs of each batch that are counted, in turns, of which the median is shown",
    )
    parser.add_argument("--model", type=Path, help="a folder; else SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    if options.llama_cpp is not None and options.model is not None:
        parser.error("--llama-cpp is for SmolLM2 only: the weights of others are not converted")
    if options.tokens < 2 or options.repeats < 1:
        parser.error("at least two tokens and one repeat are needed")
    return options


def chosen(options: argparse.Namespace, say: Callable[[str], None]) -> list[Configuration]:
    """Who takes part."""
    cores = len(os.sched_getaffinity(0))
    every = ours(cores)
    if options.peer:
        every += upstream(cores, options.peer_python or peer_python(FOLDER, say))
    return [each for each in every if not options.only or any(o in each.name for o in options.only)]


def start(
    configuration: Configuration,
    model: Path,
    dtype: str,
    batches: tuple[int, ...],
    folder: str,
    say: Callable[[str], None],
) -> Participant:
    """Start a configuration's process and wait until it is ready."""
    most = max(batches)
    common: dict[str, Any] = {
        "model": str(model),
        "dtype": dtype,
        "max_model_len": 2 * _PAGE,
        "max_num_seqs": most,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": (2 * most + 2) * _PAGE * bytes_per_token(model, dtype),
        "enable_prefix_caching": False,
        "disable_log_stats": True,
    }
    log = Path(folder) / f"{configuration.name}.log"
    engine = Engine(configuration, common, {**os.environ, **_QUIET}, log)
    ready = engine.wait_until_ready()
    say(f"{configuration.name}: ready, imported in {ready['import_s']:.0f} s, engine in "
        f"{ready['engine_s']:.0f} s")  # fmt: skip
    assert ready["dtype"] == dtype, (ready, dtype)
    return Participant(configuration.name, configuration.is_peer, engine.run, engine.end)


def bytes_per_token(model: Path, dtype: str) -> int:
    """What the cache needs for each token's keys and values."""
    config = json.loads((Path(model) / "config.json").read_text())
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    items = 2 * int(config["num_hidden_layers"]) * int(heads) * int(size)
    return items * (4 if dtype == "float32" else 2)


def start_llama_cpp(
    options: argparse.Namespace, dtype: str, folder: Path, say: Callable[[str], None]
) -> list[Participant]:
    """llama.cpp with the same counts of threads."""
    from serving_llama_cpp import LlamaCpp, write_unpacked

    path = folder / "model.gguf"
    write_unpacked(path, dtype)
    say(f"llama.cpp: {options.llama_cpp}")
    counts = [count for count in (1, 2) if count <= len(os.sched_getaffinity(0))]
    return [
        Participant(
            f"llama.cpp, {threads(count)}",
            True,
            LlamaCpp(options.llama_cpp, path, count).run,
            lambda: None,
        )
        for count in counts
    ]


def take_turns(
    participants: list[Participant],
    batches: tuple[int, ...],
    options: argparse.Namespace,
    say: Callable[[str], None],
) -> None:
    """Warm everybody up at each batch, then let them run one after the other, again and again."""
    for batch in batches:
        warmup = {"batch": batch, "prompt": options.prompt, "tokens": WARMUP_TOKENS, "seed": 0}
        for participant in participants:
            participant.run(warmup)
        for repeat in range(options.repeats):
            for participant in participants:
                work = {**warmup, "tokens": options.tokens, "seed": repeat + 1}
                result = participant.run(work)
                participant.runs.setdefault(batch, []).append(result)
                say(
                    f"batch {batch}, repeat {repeat + 1}, {participant.name}: "
                    f"{result['tokens_per_s']:.1f} tok/s, load {load():.1f}"
                )
        for participant in participants:
            if participant.name.startswith("asynchronous"):
                say(f"batch {batch}, {participant.name}: looking at its steps")
                work = {**warmup, "tokens": max(options.tokens, _EXAMINED), "examine": 1}
                participant.device[batch] = participant.run(work)


def best_peer(participants: list[Participant], batch: int, figure: str) -> Participant | None:
    """Upstream at its best for this batch; llama.cpp has rows of its own."""
    peers = [each for each in participants if each.name.startswith("upstream")]
    if not peers:
        return None
    choose = min if figure == "first_token_ms" else max
    return choose(peers, key=lambda each: each.value(batch, figure))


def measurements(participants: list[Participant], batches: tuple[int, ...]) -> list[Measurement]:
    """One row for each participant, batch and figure, ours against the best of upstream's."""
    rows = []
    for batch in batches:
        for figure, unit, title in (
            ("tokens_per_s", "tok/s", "whole run"),
            ("first_token_ms", "ms", "first token"),
            ("decode_tokens_per_s", "tok/s", "decode"),
        ):
            best = best_peer(participants, batch, figure)
            for each in participants:
                rows.append(
                    Measurement(
                        f"batch {batch}, {title}: {each.name}",
                        each.value(batch, figure),
                        unit,
                        None if best is None or each.is_peer else best.value(batch, figure),
                        "" if best is None else best.name.removeprefix("upstream, "),
                        repeats=each.repeats(batch, figure),
                    )
                )
        for each in participants:
            rows += device_measurements(each, batch)
    return rows


def device_measurements(participant: Participant, batch: int) -> list[Measurement]:
    """One row for each figure of the device's steps; the peer of a time is the live step's."""
    found = participant.device.get(batch)
    if found is None:
        return []
    name = f"batch {batch}, device: {participant.name}"
    live_ms = found["live_ms"]
    return [
        Measurement(f"{name}: step", live_ms, "ms"),
        Measurement(f"{name}: step alone", found["alone_ms"], "ms", live_ms, "live"),
        Measurement(f"{name}: products alone", found["products_ms"], "ms", live_ms, "live"),
        Measurement(f"{name}: idle gap, p50", found["gap_p50_us"], "us"),
        Measurement(f"{name}: idle gap, p99", found["gap_p99_us"], "us"),
        Measurement(f"{name}: busy", found["busy_percent"], "%"),
    ]


def print_batch(console: Console, participants: list[Participant], batch: int) -> None:
    """One table for a batch; the ratio is of whole runs, to upstream's best."""
    best = best_peer(participants, batch, "tokens_per_s")
    table = Table(
        title=f"batch {batch}", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("", no_wrap=True)
    for name in ("tok/s", "to best\nupstream", "first\nms", "decode\ntok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("every repeat, tok/s")
    for each in participants:
        rate = each.value(batch, "tokens_per_s")
        table.add_row(
            each.name,
            f"{rate:.1f}",
            "" if best is None else f"{rate / best.value(batch, 'tokens_per_s'):.2f}",
            f"{each.value(batch, 'first_token_ms'):.0f}",
            f"{each.value(batch, 'decode_tokens_per_s'):.1f}",
            " ".join(f"{value:.1f}" for value in each.repeats(batch, "tokens_per_s")),
        )
    console.print(table)


def print_device(console: Console, participants: list[Participant], batch: int) -> None:
    """What the decode steps were made of."""
    examined = [each for each in participants if batch in each.device]
    if not examined:
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("decode steps on the device", no_wrap=True)
    for name in ("live\nms", "alone\nms", "to\nlive", "products\nalone, ms", "to\nlive"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("idle gap\np50, us", "\np99, us", "busy\n%"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in examined:
        found = each.device[batch]
        table.add_row(
            each.name,
            *(f"{found['live_ms']:.1f}", f"{found['alone_ms']:.1f}"),
            f"{found['alone_ms'] / found['live_ms']:.2f}",
            f"{found['products_ms']:.1f}",
            f"{found['products_ms'] / found['live_ms']:.2f}",
            *(f"{found['gap_p50_us']:.0f}", f"{found['gap_p99_us']:.0f}"),
            f"{found['busy_percent']:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
