import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "device"))  # for child.py


@pytest.fixture(autouse=True)
def _clean_device():
    """Each test starts and ends with an idle device on its default stream, and no failure left."""
    torch.accelerator.synchronize()
    torch.gapless.recorder.set_step(-1)
    yield
    torch.accelerator.set_stream(torch.gapless.default_stream())
    torch.accelerator.synchronize()


@pytest.fixture
def same_threads():
    """CPU kernels split some sums by thread; the reference has to use as many as the device."""
    before = torch.get_num_threads()
    torch.set_num_threads(torch.gapless.get_device_properties().cores)
    yield
    torch.set_num_threads(before)
