import os

from gapless.compile.artifact_cache import evict


def test_what_was_used_least_recently_goes_first(tmp_path):
    for age, name in enumerate(("new", "old", "oldest")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "program.so").write_bytes(b"x" * 100)
        os.utime(folder, (1000 - age, 1000 - age))
    assert evict(tmp_path, 1000) == []
    assert evict(tmp_path, 250) == ["oldest"]
    assert evict(tmp_path, 50, keep="old") == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
