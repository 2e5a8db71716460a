import errno
import json
import os
import threading

import pytest

from gapless.cache import entries as cache
from gapless.cache.entries import MANIFEST, CacheError, cache_root, check, obtain

SOURCE = {"package": "weights 1", "converter": "1"}


class Builder:
    """Writes two files and counts how often it was asked to."""

    def __init__(self):
        self.calls = 0

    def __call__(self, folder):
        self.calls += 1
        (folder / "weights.bin").write_bytes(bytes(range(256)) * 40)
        (folder / "config.json").write_text("{}")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def notes():
    return []


@pytest.fixture
def build():
    return Builder()


@pytest.fixture
def get(root, notes, build):
    return lambda source=SOURCE: obtain("model", source, build, notes.append, root)


def test_an_entry_is_built_once(get, build, notes, root):
    first = get()
    assert get() == first == root / "model"
    assert build.calls == 1
    assert notes == []
    assert check(first, SOURCE) is None


def test_the_folder_is_the_users_alone(get, root):
    get()
    assert root.stat().st_mode & 0o777 == 0o700


def test_the_manifest_says_what_and_from_what(get):
    manifest = json.loads((get() / MANIFEST).read_text())
    assert manifest["source"] == SOURCE
    assert [file["name"] for file in manifest["files"]] == ["config.json", "weights.bin"]
    assert manifest["files"][1]["size_bytes"] == 256 * 40


def truncate(entry):
    os.truncate(entry / "weights.bin", 100)


def edit(entry):
    with (entry / "weights.bin").open("r+b") as stream:
        stream.seek(5000)
        stream.write(b"!")


def remove_file(entry):
    (entry / "config.json").unlink()


def add_file(entry):
    (entry / "extra.py").write_text("")


def remove_manifest(entry):
    (entry / MANIFEST).unlink()


def cut_manifest(entry):
    path = entry / MANIFEST
    path.write_text(path.read_text()[:-20])


def empty_manifest(entry):
    (entry / MANIFEST).write_text("[]")


def newer_manifest(entry):
    path = entry / MANIFEST
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))


def replace_by_link(entry):
    path = entry / "weights.bin"
    path.rename(entry.parent / "elsewhere")
    path.symlink_to(entry.parent / "elsewhere")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "weights.bin has 100 bytes instead of 10240"),
        (edit, "the checksum of weights.bin is wrong"),
        (remove_file, "its files are not those listed: config.json"),
        (add_file, "its files are not those listed: extra.py"),
        (remove_manifest, "it has no manifest"),
        (cut_manifest, "its manifest cannot be read"),
        (empty_manifest, "its manifest cannot be read"),
        (newer_manifest, "its manifest cannot be read: manifest version 2, expected 1"),
        (replace_by_link, "weights.bin is not a plain file"),
    ],
)
def test_damage_is_noticed_told_in_one_line_and_mended(get, build, notes, damage, words):
    entry = get()
    damage(entry)
    assert words in check(entry, SOURCE)
    assert get() == entry
    assert build.calls == 2
    assert len(notes) == 1
    assert words in notes[0]
    assert "building it again" in notes[0]
    assert check(entry, SOURCE) is None


def test_another_source_is_built_anew(get, build, notes):
    get()
    get({**SOURCE, "converter": "2"})
    assert build.calls == 2
    assert "another source" in notes[0]


def test_a_build_that_fails_leaves_nothing(root, notes):
    def fail(folder):
        (folder / "half").write_text("half")
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        obtain("model", SOURCE, fail, notes.append, root)
    assert [path.name for path in root.iterdir()] == [".model.lock"]


def test_what_a_killed_build_left_is_removed(get, root):
    root.mkdir(mode=0o700)
    left = root / ".model.building-abc"
    left.mkdir()
    (left / "half").write_text("half")
    get()
    assert not left.exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "is full"),
        (errno.EDQUOT, "is full"),
        (errno.EROFS, "cannot be written: Read-only file system"),
    ],
)
def test_a_disk_that_takes_no_more_gives_one_clear_line(root, notes, code, words):
    def fail(folder):
        raise OSError(code, os.strerror(code))

    with pytest.raises(CacheError, match=words) as error:
        obtain("model", SOURCE, fail, notes.append, root)
    assert "GAPLESS_CACHE" in str(error.value)
    assert not (root / "model").exists()


def test_a_folder_that_others_may_write_to_is_refused(get, root):
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(CacheError, match=r"mode 777 .* chmod go-w"):
        get()


def test_a_folder_of_another_user_is_refused(get, root, monkeypatch):
    get()
    monkeypatch.setattr(cache.os, "getuid", lambda: 4321)
    with pytest.raises(CacheError, match="you are 4321"):
        get()


def test_a_file_in_the_place_of_the_folder_is_refused(get, root):
    root.write_text("")
    with pytest.raises(CacheError, match="is not a folder"):
        get()


def test_a_second_builder_waits_for_the_first_and_uses_its_entry(root, build):
    building, waiting = threading.Event(), threading.Event()
    results, notes = [], []

    def slow(folder):
        building.set()
        assert waiting.wait(60)
        build(folder)

    def notify(line):
        notes.append(line)
        waiting.set()

    def first():
        results.append(obtain("model", SOURCE, slow, notes.append, root))

    thread = threading.Thread(target=first)
    thread.start()
    assert building.wait(60)
    results.append(obtain("model", SOURCE, build, notify, root))
    thread.join(60)
    assert results == [root / "model"] * 2
    assert build.calls == 1
    assert len(notes) == 1
    assert "waiting" in notes[0]


def test_the_place_of_the_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("GAPLESS_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "gapless"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "gapless"
    monkeypatch.setenv("GAPLESS_CACHE", "~/mine")
    assert cache_root() == tmp_path / "mine"
