"""``python -m gapless``: the command line."""

from gapless.cli import main

main()
