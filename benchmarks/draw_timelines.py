"""Draw recorded timelines, as the picture in the README is: ``TITLE=FILE ... OUT.svg``."""

import sys

from gapless.profile import Timeline
from gapless.profile.picture import draw


def main() -> None:
    """Draw the timelines named on the command line."""
    if len(sys.argv) < 3 or not all("=" in argument for argument in sys.argv[1:-1]):
        sys.exit("usage: draw_timelines.py TITLE=timeline.npz [TITLE=timeline.npz ...] OUT.svg")
    pairs = [argument.rsplit("=", 1) for argument in sys.argv[1:-1]]
    draw(sys.argv[-1], [(title, Timeline.load(path)) for title, path in pairs])


if __name__ == "__main__":
    main()
