"""Saving, loading, copying and sending tensors and storages of the device."""

import copy
import io
import pickle

import pytest
import torch
from child import run
from safetensors.torch import load_file, save_file


def saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("location", "device"),
    [
        (None, "gapless:0"),
        ("cpu", "cpu"),
        ("gapless", "gapless:0"),
        ("gapless:0", "gapless:0"),
        (torch.device("gapless"), "gapless:0"),
        ({"gapless:0": "cpu"}, "cpu"),
        ({"gapless:0": "gapless:0"}, "gapless:0"),
        ({"cuda:0": "cpu"}, "gapless:0"),  # about another device
        (lambda storage, tag: storage, "cpu"),
        (lambda storage, tag: storage.gapless() if tag == "gapless:0" else None, "gapless:0"),
    ],
    ids=lambda value: "function" if callable(value) else str(value),
)
def test_map_location(location, device):
    tensor = torch.arange(6.0, device="gapless")
    loaded = torch.load(saved({"a": tensor, "b": tensor[2:]}), map_location=location)
    assert loaded["a"].device == loaded["b"].device == torch.device(device)
    assert loaded["a"].tolist() == tensor.tolist()
    loaded["a"].fill_(7)  # views of one storage before, and after
    assert loaded["b"].tolist() == [7.0] * 4


@pytest.mark.parametrize("location", ["gapless", "gapless:0"])
def test_what_was_saved_on_the_host_can_be_loaded_to_the_device(location):
    loaded = torch.load(saved(torch.ones(3)), map_location=location)
    assert loaded.device == torch.device("gapless:0")
    assert loaded.tolist() == [1.0] * 3


@pytest.mark.parametrize("location", ["gaplessx", "gapless2", "gapless:x"])
def test_names_that_begin_like_ours_are_not_ours(location):
    with pytest.raises(RuntimeError, match=r"don't know how to restore|Invalid device string"):
        torch.load(saved(torch.ones(3)), map_location=location)


def test_an_index_that_is_not_there():
    with pytest.raises(RuntimeError, match="device 99"):
        torch.load(saved(torch.ones(3)), map_location="gapless:99")


def test_deepcopy_and_pickle_keep_what_is_shared():
    tensor = torch.arange(6.0, device="gapless")
    for again in (copy.deepcopy([tensor, tensor[1:]]), torch.load(saved([tensor, tensor[1:]]))):
        again[0].fill_(9)
        assert again[1].tolist() == [9.0] * 5
    assert torch.equal(pickle.loads(pickle.dumps(tensor)).cpu(), tensor.cpu())
    parameter = copy.deepcopy(torch.nn.Parameter(tensor))
    assert parameter.requires_grad
    assert parameter.device == tensor.device
    assert tensor.tolist() == list(range(6))


def test_a_module_and_its_optimizer_go_through_a_checkpoint():
    def new() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to("gapless")
        return model, torch.optim.Adam(model.parameters())

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 3, device="gapless")).sum().backward()
        optimizer.step()

    model, optimizer = new()
    step(model, optimizer)
    file = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    step(model, optimizer)
    other, its_optimizer = new()
    checkpoint = torch.load(file)
    other.load_state_dict(checkpoint["model"])
    its_optimizer.load_state_dict(checkpoint["optimizer"])
    step(other, its_optimizer)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.cpu(), two.cpu())


def test_safetensors(tmp_path):
    tensor = torch.arange(6.0, device="gapless")
    path = tmp_path / "tensors.safetensors"
    save_file({"x": tensor}, path)
    assert load_file(path)["x"].to("gapless").tolist() == tensor.tolist()
    with pytest.raises(Exception, match="gapless is invalid"):  # safetensors' own list of devices
        load_file(path, device="gapless")


def test_storages():
    tensor = torch.arange(4.0, device="gapless")
    storage = tensor.untyped_storage()
    assert storage.device == torch.device("gapless:0")
    assert storage.is_gapless
    assert not storage.cpu().is_gapless
    assert torch.ones(2).untyped_storage().gapless().device == storage.device
    twin = storage.clone()
    twin.fill_(0)
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0]
    twin.copy_(torch.ones(4).untyped_storage())
    view = torch.empty(0, device="gapless").set_(twin, 0, (4,))
    assert view.tolist() == [1.0] * 4
    twin.resize_(8 * 4)
    assert twin.nbytes() == 32
    assert view.tolist() == [1.0] * 4


def test_sharing_is_refused_with_the_remedy():
    tensor = torch.ones(3, device="gapless")
    for call in (
        tensor.share_memory_,
        tensor.untyped_storage().share_memory_,
        torch.nn.Linear(2, 2).to("gapless").share_memory,
    ):
        with pytest.raises(RuntimeError, match=r"share a copy on the host instead \(.cpu\(\)\)"):
            call()
    assert torch.ones(3).share_memory_().is_shared()


def test_sending_a_tensor_to_a_process_is_refused():
    done = run(
        """
        import torch, torch.multiprocessing as multiprocessing

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            for value in (torch.ones(2, device="gapless"), torch.nn.Linear(1, 1).to("gapless")):
                try:
                    context.Process(target=print, args=(value,)).start()
                except RuntimeError as error:
                    print(error)
        """
    )
    assert done.stdout.count("sending a tensor to another process: memory of the device") == 2


def test_numpy_needs_the_host():
    tensor = torch.ones(3, device="gapless")
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        tensor.numpy()
    assert tensor.numpy(force=True).tolist() == [1.0] * 3
    assert tensor.cpu().numpy().tolist() == [1.0] * 3


def test_methods_of_the_devices_name():
    host = torch.ones(2)
    tensor = host.gapless()
    assert tensor.is_gapless
    assert not host.is_gapless
    assert tensor.gapless() is tensor
    assert host.gapless(0).device == host.gapless("gapless:0", non_blocking=True).device
    with pytest.raises((RuntimeError, ValueError), match="Invalid device"):
        host.gapless("cpu")
