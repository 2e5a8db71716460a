import dataclasses
import re
from pathlib import Path

import pytest

from gapless.profile import Timeline
from gapless.profile.comparison import compare
from gapless.profile.recording_folder import ProcessRecording
from gapless.profile.summary import summarise

from .handmade import timeline

# Two streams: the second fills 5 of the first gap, and all of the second one.
WORK = [(0, 0, 0, 10_000), (0, 1, 30_000, 40_000), (0, 2, 50_000, 60_000),
        (1, -1, 15_000, 20_000), (1, -1, 38_000, 52_000)]  # fmt: skip
HOST = [(0, "schedule", 10_000, 14_000), (0, "process", 14_000, 30_000)]


def recordings(*timelines):
    return [
        ProcessRecording(Path(f"timeline-{number}.npz"), f"process {number}", made)
        for number, made in enumerate(timelines)
    ]


def one_run(made, **options):
    [(_, _, run)] = summarise(recordings(made), **options).runs
    return run


def test_idle_is_the_union_over_streams_and_never_a_sum():
    summary = summarise(recordings(timeline(WORK, HOST)))
    [process] = summary.processes
    [device] = process.devices
    assert (device.works, device.streams, device.copies) == (5, 2, 0)
    # Each stream by itself idles for 30 and 41 of these 60; together they idle for 15.
    assert (device.span_us, device.busy_us) == (60.0, 45.0)
    [run] = device.runs
    assert (run.idle.total_us, run.idle.max_us, run.idle.p50_us) == (15.0, 15.0, 7.5)
    assert (run.steps.busy_percent, run.idle_percent) == (75.0, 25.0)
    assert summary.notes == ()


def test_nested_and_waiting_work_adds_nothing():
    nested = [*WORK, (0, 0, 2000, 8000), (1, -1, 39_000, 51_000)]
    waits = [(1, -1, 0, 60_000)]
    assert one_run(timeline(nested, HOST, waits=waits)).idle == one_run(timeline(WORK, HOST)).idle


def test_what_idle_costs_per_second():
    run = one_run(timeline(WORK, HOST), tokens_per_step=8)
    assert run.steps_per_s == pytest.approx(3 / 60e-6)
    assert run.tokens_per_s == pytest.approx(8 * 3 / 60e-6)
    cause, other = run.lost
    assert (cause.name, cause.gaps, cause.total_us) == ("process", 1, 11)
    assert (other.name, other.gaps, other.total_us) == ("schedule", 1, 4)
    assert cause.share_percent == pytest.approx(100 * 11 / 15)
    # Without its 11 us the three steps would take 49 us.
    assert cause.steps_per_s == pytest.approx(3 / 49e-6 - 3 / 60e-6)
    assert cause.tokens_per_s == pytest.approx(8 * cause.steps_per_s)


def test_tokens_are_known_where_they_were_counted():
    assert one_run(timeline(WORK)).tokens_per_s is None
    counted = dataclasses.replace(timeline(WORK), tokens=6)
    assert one_run(counted).tokens_per_step == pytest.approx(2)
    assert one_run(counted, tokens_per_step=5).tokens_per_step == 5


def test_warm_up_is_left_out_of_each_run():
    work = [(0, n % 4, 100 * n, 100 * n + 50) for n in range(8)]
    summary = summarise(recordings(timeline(work)), warmup=1)
    assert [(run.number, run.steps.steps) for _, _, run in summary.runs] == [(1, 3), (2, 3)]


def test_processes_and_devices_are_kept_apart():
    two = timeline(WORK, device=3)
    summary = summarise(recordings(timeline(WORK), two))
    assert [(process.label, device.device) for process, device, _ in summary.runs] == [
        ("process 0", 0),
        ("process 1", 3),
    ]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (timeline([], HOST), "nothing was recorded on a device, only ranges of the host"),
        (timeline(WORK), "100 % of the idle time is unmarked: mark .*host_range"),
        (timeline([(0, -1, 0, 10)]), "no device ran two numbered steps, .*set_step"),
        (timeline([(0, 0, 0, 10)]), "no device ran two numbered steps"),
        (
            timeline(WORK, HOST, dropped=7),
            "process 0: the buffers dropped the oldest 7 works",
        ),
    ],
)
def test_what_is_missing_is_said(made, says):
    [note] = summarise(recordings(made)).notes
    assert "\n" not in note
    assert re.search(says, note)


def test_recordings_of_different_times_are_noticed():
    later = [(stream, step, start + 10**10, end + 10**10) for stream, step, start, end in WORK]
    made = [timeline(WORK, HOST), timeline(later, [(0, "process", 10**10, 2 * 10**10)])]
    for order in (made, made[::-1]):
        [note] = summarise(recordings(*order)).notes
        assert " began 10.0 s after the last thing in process " in note
    soon = timeline([], [(0, "join", 10**9, 2 * 10**9)])
    assert summarise(recordings(made[0], soon)).notes == ()
    around = timeline([], [(0, "join", 0, 3 * 10**10)])
    assert summarise(recordings(*made, around)).notes == ()


def test_two_side_by_side():
    longer = [*WORK, (0, 3, 70_000, 80_000)]
    comparison = compare(
        summarise(recordings(timeline(WORK, HOST))),
        summarise(recordings(timeline(longer), timeline(WORK))),
    )
    [pair] = comparison.pairs
    figures = {figure.name: figure for figure in pair.figures}
    assert (figures["steps"].first, figures["steps"].second) == (3, 4)
    assert figures["idle total"].change_percent == pytest.approx(100 * 10 / 15)
    assert figures["idle per step"].change_percent == pytest.approx(25.0)
    assert figures["tokens per second"].change_percent is None
    assert [(cause.name, cause.first, cause.second) for cause in pair.causes] == [
        ("unmarked", 0.0, 6.25),
        ("process", pytest.approx(11 / 3), 0.0),
        ("schedule", pytest.approx(4 / 3), 0.0),
    ]
    assert pair.notes == ("3 steps against 4: compare what is per step or per second, not totals",)
    assert comparison.notes == (
        "the first has 1 runs of steps and the second 2; the first 1 of each are compared",
        "the second: 100 % of the idle time is unmarked: mark what the host does with "
        "gapless.profile.host_range(name)",
    )


def test_a_timeline_without_time_divides_by_nothing():
    points = timeline([(0, 0, 5, 5), (0, 1, 5, 5)])
    run = one_run(points)
    assert (run.steps_per_s, run.idle_percent, run.steps.busy_percent) == (0.0, 0.0, 100.0)
    assert isinstance(points, Timeline)
