import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from gapless.errors import UsageError
from gapless.profile import page_data
from gapless.profile.page_data import PageData
from gapless.profile.page_file import write_page
from gapless.profile.recording_folder import ProcessRecording
from gapless.profile.summary import summarise

from .handmade import timeline

WORK = [(0, 0, 1000, 2000), (0, 1, 4000, 5000), (1, -1, 1500, 1800)]
HOST = [(0, "</script><b>", 2000, 4000), (0, "inner", 2500, 3000), (0, "inner", 3000, 3600)]


def recordings(*timelines):
    return [
        ProcessRecording(Path("x"), f"<p{number}>", made) for number, made in enumerate(timelines)
    ]


class Parsed(HTMLParser):
    """Which tags there are, what they refer to, and the data."""

    def __init__(self, text):
        super().__init__()
        self.open, self.references, self.ids, self.texts = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.references += [attrs[name] for name in ("src", "href", "action") if name in attrs]
        self.ids += [attrs["id"]] if "id" in attrs else []
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))


def page(tmp_path, *timelines):
    made = recordings(*timelines)
    write_page(tmp_path / "page.html", "Title & more", made, summarise(made))
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    return (tmp_path / "page.html").read_text()


def data_of(text):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*)</script>', text)[1]
    )


def unpacked(text, kind):
    return np.frombuffer(base64.b64decode(text), np.dtype(kind).newbyteorder("<")).tolist()


def test_the_page_is_whole_and_loads_nothing(tmp_path):
    text = page(tmp_path, timeline(WORK, HOST))
    parsed = Parsed(text)
    assert parsed.references == []
    assert "://" not in text
    assert "default-src 'none'" in text
    assert "{{" not in text
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert ("h1", "Title & more") in parsed.texts
    assert ("td", "<p0>") in parsed.texts
    # The script looks these up by their ids, and each button's word among its actions.
    script = (Path(page_data.__file__).parent / "page" / "timeline.js").read_text()
    assert set(re.findall(r'getElementById\("(\w+)"\)', script)) <= set(parsed.ids)
    actions = re.search(r"const actions = \{(.*?)\n  \};", script, re.S)[1]
    for action in re.findall(r'data-do="([\w-]+)"', text):
        assert re.search(rf"(^|\W)\"?{action}\"?: ", actions)


def test_the_timeline_s_data(tmp_path):
    data = data_of(page(tmp_path, timeline(WORK, HOST, queued_ns=500)))
    assert data["end"] == 4500
    [process] = data["processes"]
    assert process["label"] == "<p0>"
    tracks = {track["name"]: track for track in process["tracks"]}
    assert list(tracks) == ["thread 0", "thread 1", "thread 2", "device 0: idle between steps",
                            "device 0: queue depth", "device 0: stream 0",
                            "device 0: stream 1"]  # fmt: skip
    outer, inner = tracks["thread 0"]["rows"]  # nested ranges lie a row below
    assert unpacked(outer["start"], "f8") == [1500]
    assert unpacked(inner["start"], "f8") == [2000, 2500]
    assert unpacked(inner["length"], "f4") == [500, 600]
    [idle] = tracks["device 0: idle between steps"]["rows"]
    assert (unpacked(idle["start"], "f8"), unpacked(idle["length"], "f4")) == ([1500], [2000])
    [cause] = unpacked(idle["name"], "u2")
    assert data["names"][cause] == "inner"
    [stream] = tracks["device 0: stream 0"]["rows"]
    assert unpacked(stream["step"], "i4") == [0, 1]
    queue = tracks["device 0: queue depth"]
    assert queue["most"] == 2
    assert len(unpacked(queue["time"], "f8")) == len(unpacked(queue["value"], "i4")) == 6


def test_rows_are_disjoint_whatever_overlaps():
    rng = np.random.default_rng(3)
    start = rng.integers(0, 200, 60)
    end = start + rng.integers(0, 40, 60)
    rows = page_data._disjoint_rows(start, end)
    assert sorted(np.concatenate(rows).tolist()) == list(range(60))
    for row in rows:
        assert (start[row][1:] >= end[row][:-1]).all()


def test_nothing_to_show_is_a_page_too(tmp_path):
    text = page(tmp_path, timeline([]), timeline([], HOST))
    Parsed(text)
    assert "There is no idle gap" in text
    assert "only ranges of the host" in text


def test_no_gap_and_equal_gaps_have_a_histogram(tmp_path):
    busy = timeline([(0, step, 10 * step, 10 * step + 10) for step in range(4)])
    assert "There is no idle gap" in page(tmp_path, busy)
    equal = timeline([(0, step, 1000 * step, 1000 * step + 500) for step in range(4)])
    assert "Histogram of 3 idle gaps from 0.5 us to 0.5 us" in page(tmp_path, equal)


def test_too_much_for_a_page_is_refused(monkeypatch):
    monkeypatch.setattr(page_data, "MAX_BARS", 8)
    with pytest.raises(UsageError, match="more than 8 bars, too many for a page; view one"):
        PageData(recordings(timeline(WORK, HOST)))


def test_a_failure_leaves_no_file(tmp_path):
    made = recordings(timeline(WORK))
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_page(tmp_path / "folder", "t", made, summarise(made))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
