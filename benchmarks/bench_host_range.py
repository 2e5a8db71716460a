"""What a host range costs, in microseconds: not recorded, and recorded."""

import timeit

from gapless.profile import host_range, ranges

_CALLS = 100_000
_REPEATS = 7


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
    print(f"host range, not recorded: {cost_us():.2f} us")
    ranges.start()
    try:
        print(f"host range, recorded:     {cost_us():.2f} us")
    finally:
        ranges.stop()
        ranges.drain()


if __name__ == "__main__":
    main()
