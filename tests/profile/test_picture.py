import xml.etree.ElementTree as ElementTree

import pytest

from gapless.profile import TimelineError
from gapless.profile.picture import draw

from .handmade import timeline

SVG = "{http://www.w3.org/2000/svg}"


def bars(path):
    return [
        (bar.find(f"{SVG}title").text, float(bar.get("x")), float(bar.get("width")))
        for bar in ElementTree.parse(path).getroot().iter(f"{SVG}rect")
        if bar.find(f"{SVG}title") is not None
    ]


def test_draws_hosts_streams_and_gaps(tmp_path):
    work = [(0, step, 1000 * step, 1000 * step + 600) for step in range(8)]
    host = [(0, "pre<pare>", 1000 * step + 600, 1000 * step + 1000) for step in range(8)]
    path = tmp_path / "picture.svg"
    draw(path, [("one & two", timeline(work, host))], window_us=1.2, warmup=1)
    texts = [text.text for text in ElementTree.parse(path).getroot().iter(f"{SVG}text")]
    assert texts[:4] == ["one & two", "host: thread 0", "device: stream 0", "device: idle"]
    # A quarter of the window lies before the end of step 4, and the rest is cut off after 0.9 us.
    assert [name for name, _, _ in bars(path)] == [
        "pre<pare>, 0.4 us",
        "step 4, 0.3 us",
        "step 5, 0.5 us",
        "idle: pre<pare>, 0.4 us",
    ]


def test_the_median_gap_is_shown_a_quarter_into_the_window(tmp_path):
    work = [(0, step, start, start + 100) for step, start in enumerate((0, 200, 600, 1900))]
    draw(tmp_path / "picture.svg", [("gaps", timeline(work))], window_us=0.4, warmup=0)
    [before, median] = [bar for bar in bars(tmp_path / "picture.svg") if bar[0] == "step 1, 0.1 us"
                        or bar[0].startswith("idle")]  # fmt: skip
    assert median[0] == "idle: unmarked, 0.3 us"
    assert median[1] == pytest.approx(before[1] + before[2], abs=0.02)
    assert median[2] == pytest.approx(3 * before[2], abs=0.02)


def test_timelines_share_one_scale(tmp_path):
    quick = timeline([(0, step, 200 * step, 200 * step + 100) for step in range(4)])
    slow = timeline([(0, step, 400 * step, 400 * step + 300) for step in range(4)])
    path = tmp_path / "picture.svg"
    draw(path, [("quick", quick), ("slow", slow)], window_us=0.4, warmup=0)
    widths = {round(width, 1) for name, _, width in bars(path) if name == "idle: unmarked, 0.1 us"}
    assert len(widths) == 1


def test_nothing_to_draw(tmp_path):
    with pytest.raises(TimelineError, match="no timeline"):
        draw(tmp_path / "a.svg", [])
    with pytest.raises(TimelineError, match="10 are left out"):
        draw(tmp_path / "a.svg", [("short", timeline([(0, 0, 0, 1), (0, 1, 2, 3)]))])
