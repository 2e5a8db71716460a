import pytest
import torch

from gapless.errors import UsageError
from gapless.pipeline.device_choice import choose_device


@pytest.fixture
def accelerator(monkeypatch):
    """Replaces the accelerator that torch reports."""

    def replace(kind, count=1):
        device = None if kind is None else torch.device(kind)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: device)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)

    return replace


def test_auto_takes_the_accelerator_and_else_the_cpu(accelerator):
    accelerator("cuda")
    assert choose_device("auto").type == "cuda"
    accelerator(None)
    assert choose_device("auto").type == "cpu"


def test_the_cpu_is_always_there(accelerator):
    accelerator("cuda")
    assert choose_device("cpu").type == "cpu"


def test_an_index_that_exists_is_kept(accelerator):
    accelerator("cuda", count=2)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(UsageError, match=r"no device 'cuda:2': cuda has 2"):
        choose_device("cuda:2")


@pytest.mark.parametrize("name", ["xpu", "nonsense", "", "cuda"])
def test_another_device_is_refused_with_what_there_is(accelerator, name):
    accelerator(None)
    with pytest.raises(UsageError, match=rf"no device '{name}', only cpu; run gapless doctor"):
        choose_device(name)
