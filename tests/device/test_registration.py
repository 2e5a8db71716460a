import copy
import io
import pickle

import pytest
import torch
from child import run


def test_torch_alone_offers_the_device():
    done = run(
        """
        import torch
        assert torch.accelerator.current_accelerator() == torch.device("gapless")
        assert torch.gapless.is_available() and torch.gapless.device_count() == 1
        assert not torch.gapless.is_initialized() or True
        print(torch.ones(2, device="gapless").sum().item())
        """
    )
    assert done.stdout == "2.0\n", done.stderr


@pytest.mark.parametrize("order", ["import gapless, torch", "import torch, gapless"])
@pytest.mark.parametrize("autoload", ["0", "1"])
def test_import_order_and_autoload_do_not_matter(order, autoload):
    done = run(
        f"{order}\nprint(torch.ones(1, device='gapless').item())",
        TORCH_DEVICE_BACKEND_AUTOLOAD=autoload,
    )
    assert done.stdout == "1.0\n", done.stderr


def test_import_starts_neither_threads_nor_driver():
    done = run(
        """
        import threading, torch
        import os
        print(len([t for t in os.listdir("/proc/self/task")]), torch.gapless.is_initialized())
        """,
        OMP_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
    )
    assert done.stdout == "1 False\n", done.stderr


def test_properties():
    properties = torch.gapless.get_device_properties()
    assert properties.driver in ("cpu", "sim", "copy_only")
    assert properties.cores >= 1
    assert properties.memory_is_host_addressable == (properties.driver == "cpu")
    assert torch.gapless.get_device_name() == properties.name
    with pytest.raises(RuntimeError, match="there is no device gapless:9; there are 1"):
        torch.gapless.get_device_properties(9)


def test_devices_that_are_not_there():
    with pytest.raises(RuntimeError, match="gapless:7"):
        torch.empty(1, device="gapless:7")


def test_methods_on_tensors_and_modules():
    tensor = torch.ones(2).gapless()
    assert tensor.is_gapless
    assert torch.nn.Linear(2, 2).gapless().weight.device.type == "gapless"


def test_save_load_pickle_deepcopy():
    tensor = torch.arange(6.0, device="gapless").view(2, 3)
    file = io.BytesIO()
    torch.save({"w": tensor, "t": tensor.t()}, file)
    for location in (None, "cpu", "gapless", "gapless:0"):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert loaded["w"].device.type == ("cpu" if location == "cpu" else "gapless")
        assert torch.equal(loaded["w"].cpu(), tensor.cpu())
        assert loaded["t"].untyped_storage().data_ptr() == loaded["w"].untyped_storage().data_ptr()
    assert torch.equal(pickle.loads(pickle.dumps(tensor)).cpu(), tensor.cpu())
    assert torch.equal(copy.deepcopy(tensor).cpu(), tensor.cpu())
