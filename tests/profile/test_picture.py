import xml.etree.ElementTree as ElementTree

import pytest

from gapless.profile import TimelineError
from gapless.profile.picture import draw

from .handmade import timeline

SVG = "{http://www.w3.org/2000/svg}"


def test_draws_hosts_streams_and_gaps(tmp_path):
    work = [(0, step, 1000 * step, 1000 * step + 600) for step in range(8)]
    host = [(0, "pre<pare>", 1000 * step + 600, 1000 * step + 1000) for step in range(8)]
    path = tmp_path / "picture.svg"
    draw(path, [("one & two", timeline(work, host))], steps=2, warmup=1)
    root = ElementTree.parse(path).getroot()
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[:4] == ["one & two", "host: thread 0", "device: stream 0", "device: idle"]
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert titles == [
        "pre<pare>, 0.4 us",
        "pre<pare>, 0.4 us",
        "step 3, 0.6 us",
        "step 4, 0.6 us",
        "idle: pre<pare>, 0.4 us",
        "idle: pre<pare>, 0.4 us",
    ]


def test_timelines_share_one_scale(tmp_path):
    quick = timeline([(0, step, 100 * step, 100 * step + 100) for step in range(4)])
    slow = timeline([(0, step, 200 * step, 200 * step + 100) for step in range(4)])
    path = tmp_path / "picture.svg"
    draw(path, [("quick", quick), ("slow", slow)], warmup=0)
    bars = [
        float(bar.get("width"))
        for bar in ElementTree.parse(path).getroot().iter(f"{SVG}rect")
        if bar.find(f"{SVG}title") is not None and "step" in bar.find(f"{SVG}title").text
    ]
    assert len(bars) == 6
    assert max(bars) - min(bars) < 0.02


def test_nothing_to_draw(tmp_path):
    with pytest.raises(TimelineError, match="no timeline"):
        draw(tmp_path / "a.svg", [])
    with pytest.raises(TimelineError, match="10 are left out"):
        draw(tmp_path / "a.svg", [("short", timeline([(0, 0, 0, 1), (0, 1, 2, 3)]))])
