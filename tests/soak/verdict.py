"""What a run's windows have to look like.

The first quarter of the windows is warm-up: caches fill. Of the rest,

- device memory in tensors is the same at the end of every window, to the byte and the block;
- device memory taken from the driver, with the cache emptied, is in the last third at most 4 MiB
  higher than it ever was in the first third;
- the process's resident memory has a median over the last third at most 3% and 16 MiB higher than
  over the first third; judged in runs of at least 100 seconds, since it takes that long to settle.

Of all windows, every injected error was reported once, and the watchdog said nothing.
"""

from statistics import median

from tests.soak.worker import Window

FEWEST_WINDOWS = 4
LEAST_RSS_S = 100
MIB = 1 << 20


def complaints(windows: list[Window]) -> list[str]:
    """What is wrong with the run; empty where nothing is."""
    if len(windows) < FEWEST_WINDOWS:
        return [f"only {len(windows)} windows: {FEWEST_WINDOWS} are needed to compare"]
    found = []
    last = windows[-1]
    if last.errors_injected != last.errors_reported or last.errors_injected == 0:
        found.append(
            f"of {last.errors_injected} injected errors {last.errors_reported} were reported"
        )
    if last.watchdog_reports:
        found.append(f"the watchdog reported {last.watchdog_reports} works")
    steady = windows[len(windows) // 4 :]
    third = max(1, len(steady) // 3)
    early, late = steady[:third], steady[-third:]
    for name in ("allocated", "blocks"):
        values = sorted({getattr(window, name) for window in steady})
        if len(values) > 1:
            found.append(f"{name} is not the same in all windows: {values[0]} to {values[-1]}")
    most = max(window.reserved for window in early) + 4 * MIB
    reserved = max(window.reserved for window in late)
    if reserved > most:
        found.append(f"reserved memory grew to {reserved / MIB:.0f} MiB, over {most / MIB:.0f}")
    most = median(window.rss for window in early) * 1.03 + 16 * MIB
    rss = median(window.rss for window in late)
    if rss > most and last.seconds >= LEAST_RSS_S:
        found.append(f"resident memory grew to {rss / MIB:.0f} MiB, over {most / MIB:.0f}")
    return found
