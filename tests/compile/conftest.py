import pytest
import torch

from gapless.compile import reset_statistics


@pytest.fixture(scope="session")
def _programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    return folder


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, _programs):
    """A cache of the tests' own, shared by them, and no compiled function left of another test."""
    monkeypatch.setenv("GAPLESS_CACHE", str(_programs))
    monkeypatch.setenv("GAPLESS_COMPILE", "wait")
    torch._dynamo.reset()
    reset_statistics()
    yield
    torch.accelerator.synchronize()
