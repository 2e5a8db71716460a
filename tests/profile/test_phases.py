from itertools import pairwise

import pytest

from gapless.profile import ranges
from gapless.profile.phases import Phases


@pytest.fixture(autouse=True)
def _stopped():
    yield
    ranges.stop()
    ranges.drain()


def found():
    recorded = ranges.drain()
    return [
        (recorded.names[name_id], step, start_ns, end_ns)
        for _, step, name_id, start_ns, end_ns in recorded.columns.tolist()
    ]


def test_each_ends_where_the_next_begins():
    phases = Phases()
    ranges.start()
    for step in range(2):
        phases.begin("wait", step)
        phases.begin("process", step)
    assert len(found()) == 3  # what is still open is not among them
    phases.end()
    phases.end()
    phases.begin("again")
    phases.end()
    last, again = found()
    assert last[:2] == ("process", 1)
    assert again[:2] == ("again", -1)
    ranges.stop()
    ranges.start()
    for name in ("a", "b", "c"):
        phases.begin(name)
    phases.end()
    rows = found()
    assert [row[0] for row in rows] == ["a", "b", "c"]
    assert all(first[3] == second[2] for first, second in pairwise(rows))


def test_off_nothing_is_kept():
    phases = Phases()
    phases.begin("before")
    ranges.start()
    phases.end()
    assert found() == []
    phases.begin("during")
    ranges.stop()
    phases.begin("after")
    phases.end()
    assert [row[0] for row in found()] == ["during"]
