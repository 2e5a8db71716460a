import os
import subprocess
import sys
import textwrap

import pytest

from gapless.errors import UsageError
from gapless.profile import Timeline, environment

SETTINGS = {
    "enabled": {"GAPLESS_INSPECT_ENABLE": "1"},
    "enabled into": {"GAPLESS_INSPECT_ENABLE": "1", "GAPLESS_INSPECT_OUTPUT_DIR": "out"},
    "short": {"GAPLESS_RECORD": "out"},
    "not enabled": {"GAPLESS_INSPECT_ENABLE": "0", "GAPLESS_INSPECT_OUTPUT_DIR": "out"},
    "folder only": {"GAPLESS_INSPECT_OUTPUT_DIR": "out"},
    "nothing": {},
}


@pytest.fixture
def settings(monkeypatch):
    def put(values):
        for name in (environment.ENABLE, environment.OUTPUT_DIR, environment.RECORD):
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("asked", "folder"),
    [
        ("enabled", "gapless-recording"),
        ("enabled into", "out"),
        ("short", "out"),
        ("not enabled", None),
        ("folder only", None),
        ("nothing", None),
    ],
)
def test_what_is_asked_for(settings, asked, folder):
    settings(SETTINGS[asked])
    found = environment.wanted_folder()
    assert (None if found is None else str(found)) == folder


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"GAPLESS_INSPECT_ENABLE": "yes"}, "GAPLESS_INSPECT_ENABLE=yes is neither 1 nor 0"),
        ({"GAPLESS_INSPECT_ENABLE": "0", "GAPLESS_RECORD": "a"}, "contradict each other"),
        ({"GAPLESS_INSPECT_OUTPUT_DIR": "b", "GAPLESS_RECORD": "a"}, "differ; unset one"),
    ],
)
def test_what_has_no_meaning_is_refused(settings, values, says):
    settings(values)
    with pytest.raises(UsageError, match=says):
        environment.wanted_folder()


def run(folder, program, *, is_asked=True, **variables):
    asked = {"GAPLESS_INSPECT_ENABLE": "1", "GAPLESS_INSPECT_OUTPUT_DIR": str(folder)}
    path = folder.parent / "program.py"
    path.write_text(textwrap.dedent(program))
    return subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, **(asked if is_asked else {}), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def recorded(folder):
    """What each process marked and how much it computed, in the order of what it marked."""
    timelines = [Timeline.load(path) for path in folder.glob("timeline-*")]
    assert len({timeline.pid for timeline in timelines}) == len(timelines)
    return sorted((timeline.ranges.names, len(timeline.work) > 0) for timeline in timelines)


def test_a_whole_program_is_recorded_also_when_it_fails(tmp_path):
    (tmp_path / "made").mkdir()
    ended = run(
        tmp_path / "made" / "here",
        """
        import os
        import gapless, torch
        from gapless.profile import host_range
        os.chdir("/")
        with host_range("mark"):
            x = torch.ones(4, device="gapless") + 1
        raise SystemExit(7)
        """,
    )
    assert (ended.returncode, ended.stderr) == (7, "")
    assert recorded(tmp_path / "made" / "here") == [(("mark",), True)]


CHILDREN = """
    import multiprocessing, os, sys
    import gapless, torch
    from gapless.profile import host_range, record

    def child(name):
        with host_range(name):
            (torch.ones(4, device="gapless") + 1).cpu()
        if name == "fails":
            raise ValueError(name)

    def start(kind, name, call=child):
        process = multiprocessing.get_context(kind).Process(target=call, args=(name,))
        process.start()
        process.join(60)
        return process.exitcode

    if __name__ == "__main__":
        codes = [start("fork", "forked"), start("fork", "fails")]
        with host_range("around"):
            codes.append(start("spawn", "spawned"))
        child("parent")
        def mark(name):
            with host_range(name):
                pass
        # The device is in use by now; this child cannot use it, and has nothing of the parent's.
        codes.append(start("fork", "late", mark))
        if os.fork() == 0:
            mark("by hand")
            sys.exit(0)
        os.wait()
        codes.append(start("fork", "silent", id))
        print(codes)
"""


def test_children_write_their_own(tmp_path):
    ended = run(tmp_path / "out", CHILDREN)
    assert ended.stdout == "[0, 1, 0, 0, 0]\n", ended.stderr
    assert recorded(tmp_path / "out") == [
        (("around", "parent"), True),
        (("by hand",), False),
        (("fails",), True),
        (("forked",), True),
        (("late",), False),
        (("spawned",), True),
    ]
    # All are on one clock: the parent was waiting for the child all the while.
    rows = {
        name: made.ranges.columns[made.range_column("name_id") == number][0].tolist()
        for made in map(Timeline.load, (tmp_path / "out").iterdir())
        for number, name in enumerate(made.ranges.names)
    }
    (_, _, _, begins, ends), (_, _, _, start, end) = rows["around"], rows["spawned"]
    assert begins < start < end < ends


def test_children_forked_in_a_block_write_their_own(tmp_path):
    block = """
    import multiprocessing, sys
    import gapless
    from gapless.profile import host_range, record

    def mark(name):
        with host_range(name):
            pass

    with record(sys.argv[0].replace("program.py", "out")):
        mark("parent")
        process = multiprocessing.get_context("fork").Process(target=mark, args=("child",))
        process.start()
        process.join(60)
    """
    ended = run(tmp_path / "out", block, is_asked=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert recorded(tmp_path / "out") == [(("child",), False), (("parent",), False)]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "GAPLESS_INSPECT_OUTPUT_DIR={folder}: the folder cannot be made or written to"),
        ({"GAPLESS_INSPECT_ENABLE": "on"}, "GAPLESS_INSPECT_ENABLE=on is neither 1 nor 0"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path, variables, says):
    (tmp_path / "file").touch()
    folder = tmp_path / "file"
    ended = run(folder, "import gapless\nprint('never')\n", **variables)
    assert (ended.returncode, ended.stdout) == (2, "")
    [line] = ended.stderr.splitlines()
    assert line.startswith("gapless: error: " + says.format(folder=folder))
