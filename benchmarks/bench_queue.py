"""What the queue itself costs, without PyTorch: an empty work, a replay, the recorder."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from statistics import median

from report import Measurement, load, publish

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 30


def build(folder: Path) -> Path:
    """Compile the runtime and the loop; a minute."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    sources = [
        Path(__file__).with_name("queue_loop.cpp"),
        *(ROOT / "csrc/runtime").glob("*.cpp"),
        *(ROOT / "csrc/drivers").rglob("*.cpp"),
    ]
    program = folder / "queue_loop"
    flags = ("-std=c++20", "-O2", f"-I{ROOT / 'csrc'}", "-o", program, "-ldl", "-lpthread")
    subprocess.run([compiler, *sources, *flags], check=True)
    return program


def main() -> None:
    """Build, measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        load_before = load()
        printed = subprocess.run(
            [program, str(ROUNDS)], check=True, capture_output=True, text=True
        ).stdout
    rounds = [tuple(map(float, line.split())) for line in printed.splitlines()]
    empty, replay, off, on = zip(*rounds, strict=True)
    shares = tuple(100 * (b - a) / a for a, b in zip(off, on, strict=True))
    rows = [
        Measurement("submit an empty work", median(empty), "us", limit=0.2, repeats=empty),
        Measurement("submit a replay of 200 works", median(replay), "us", limit=3, repeats=replay),
        Measurement("works of 20 us: recorder off", median(off), "us", repeats=off),
        Measurement("works of 20 us: recorder on", median(on), "us", median(off), "off"),
        Measurement("recorder's share of them", median(shares), "%", limit=1, repeats=shares),
    ]
    publish("the queue by itself, device busy", rows, load_before)


if __name__ == "__main__":
    main()
