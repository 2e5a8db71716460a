import pytest
import torch

from tests.tiny_model import tiny_llama, to_device


def _devices():
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


@pytest.fixture(params=_devices())
def device(request):
    return torch.device(request.param)


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def reference():
    return tiny_llama()


@pytest.fixture
def model(reference, device):
    return to_device(reference, device)
