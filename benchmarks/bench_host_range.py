"""What a host range costs, in microseconds: not recorded, and recorded."""

import timeit

from report import Measurement, load, publish

from gapless.profile import host_range, ranges

_CALLS = 100_000
_REPEATS = 7
LIMIT_OFF_US = 0.3


def cost_us() -> float:
    """The least mean over several repeats, the loop itself subtracted."""

    def marked() -> None:
        for step in calls:
            with host_range("benchmark", step):
                pass

    def empty() -> None:
        for _ in calls:
            pass

    calls = range(_CALLS)
    best = [min(timeit.repeat(loop, number=1, repeat=_REPEATS)) for loop in (marked, empty)]
    return (best[0] - best[1]) / _CALLS * 1e6


def main() -> None:
    """Measure both and print them."""
    load_before = load()
    off = cost_us()
    ranges.start()
    try:
        on = cost_us()
    finally:
        ranges.stop()
        ranges.drain()
    rows = [
        Measurement("host range, not recorded", off, "us", limit=LIMIT_OFF_US),
        Measurement("host range, recorded", on, "us"),
    ]
    publish("host ranges", rows, load_before)


if __name__ == "__main__":
    main()
