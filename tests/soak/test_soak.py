"""The soak for 20 seconds, and that its verdict can be bad."""

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.soak.verdict import MIB, complaints
from tests.soak.worker import Window

GOOD = [
    Window(
        seconds=10.0 * i,
        rounds=i,
        programs=i,
        replays=i,
        errors_injected=i + 1,
        errors_reported=i + 1,
        watchdog_reports=0,
        rss=600 * MIB,
        allocated=1024,
        reserved=64 * MIB,
        blocks=2,
    )
    for i in range(20)
]


@pytest.mark.thorough
def test_twenty_seconds_are_clean():
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--seconds", "20"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "clean" in done.stdout


def test_a_good_run_is_good():
    assert complaints(GOOD) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda i, w: replace(w, rss=w.rss + i * 4 * MIB), "resident memory grew"),
        (lambda i, w: replace(w, reserved=w.reserved + i * 8 * MIB), "reserved memory grew"),
        (lambda i, w: replace(w, allocated=w.allocated + 512 * (i > 15)), "allocated is not"),
        (lambda i, w: replace(w, blocks=w.blocks + (i > 15)), "blocks is not"),
        (lambda i, w: replace(w, errors_reported=w.errors_reported - 1), "errors"),
        (lambda i, w: replace(w, errors_injected=0, errors_reported=0), "errors"),
        (lambda i, w: replace(w, watchdog_reports=1), "watchdog reported 1"),
    ],
)
def test_each_rule_can_fail(change, text):
    found = complaints([change(i, window) for i, window in enumerate(GOOD)])
    assert len(found) == 1
    assert text in found[0]


def test_too_few_windows_are_no_verdict():
    assert "only 3 windows" in complaints(GOOD[:3])[0]
