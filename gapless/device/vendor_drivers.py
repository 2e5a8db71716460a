"""Drivers of other packages, which announce themselves by an entry point."""

import os
from importlib.metadata import entry_points

from gapless import _C

GROUP = "gapless.drivers"
_BUILT_IN = ("cpu", "sim")


def announce_wanted() -> None:
    """Look up the driver that ``GAPLESS_DRIVER`` names among the installed packages.

    A package announces a driver by an entry point of the group ``gapless.drivers``: its name is the
    driver's, its object a function without arguments that returns the absolute path of the shared
    object. Nothing is imported unless its name is asked for; a name that nobody announces is an
    error at the device's first use.
    """
    wanted = os.environ.get("GAPLESS_DRIVER", "")
    if not wanted or wanted in _BUILT_IN or wanted.startswith("/"):
        return
    for entry in entry_points(group=GROUP, name=wanted):
        _C.announce_driver(wanted, os.fspath(entry.load()()))
