"""Run a piece of Python in a process of its own."""

import os
import subprocess
import sys
import textwrap


def run(code: str, timeout_s: int = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """The finished process; its output is text. A hang is an error after ``timeout_s``."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **environment},
        check=False,
    )
