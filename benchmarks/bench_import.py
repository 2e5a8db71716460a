"""What the device adds to ``import torch``."""

import os
import subprocess
import sys
from statistics import median

from report import Measurement, load, publish

REPEATS = 5
CODE = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"


def import_s(autoload: str) -> float:
    """Seconds of ``import torch`` in a fresh process."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=environment
    )
    return float(done.stdout)


def main() -> None:
    """Measure and print."""
    load_before = load()
    import_s("1")
    pairs = [(import_s("1"), import_s("0")) for _ in range(REPEATS)]
    added = tuple(with_device - without for with_device, without in pairs)
    publish(
        "import torch",
        [
            Measurement("with the device", median(p[0] for p in pairs), "s"),
            Measurement("without", median(p[1] for p in pairs), "s"),
            Measurement("added", median(added), "s", limit=0.1, repeats=added),
        ],
        load_before,
    )


if __name__ == "__main__":
    main()
