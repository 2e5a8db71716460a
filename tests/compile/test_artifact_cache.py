import os

import pytest

from gapless.compile.artifact_cache import evict, limit_bytes
from gapless.compile.mode import CompileMode, compile_mode
from gapless.errors import UsageError


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


def test_settings_that_mean_nothing_are_refused(monkeypatch):
    monkeypatch.setenv("GAPLESS_PROGRAM_CACHE_BYTES", "4G")
    with pytest.raises(UsageError, match="GAPLESS_PROGRAM_CACHE_BYTES=4G: give a number of bytes"):
        limit_bytes()
    monkeypatch.setenv("GAPLESS_COMPILE", "sometimes")
    with pytest.raises(UsageError, match="GAPLESS_COMPILE=sometimes: must be one of"):
        compile_mode()
    monkeypatch.setenv("GAPLESS_COMPILE", "")
    assert compile_mode() is CompileMode.BACKGROUND
