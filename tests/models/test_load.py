import json
import shutil

import pytest
import torch

from gapless.models.errors import ModelError
from gapless.models.load import choose_dtype, load_model
from tests.tiny_model import STOP, save_tiny, tiny_llama

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def test_a_saved_model_comes_back(folder):
    loaded = load_model(folder, CPU, "float32")
    ids = torch.tensor([[1, 5, 9]])
    assert torch.equal(loaded.model(ids).logits, tiny_llama()(ids).logits)
    assert loaded.stop_tokens == (STOP,)
    assert loaded.tokenizer("w1 w2")["input_ids"] == [4, 5]
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_shared_weights_stay_shared(folder):
    model = load_model(folder, CPU, "float32").model
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_dtype_is_the_one_asked_for(folder):
    loaded = load_model(folder, CPU, "bfloat16")
    assert loaded.model.dtype == loaded.dtype.dtype == torch.bfloat16
    assert loaded.dtype.name == "bfloat16"


@pytest.mark.parametrize(("native", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
@pytest.mark.parametrize("kind", ["cpu", "gapless"])
def test_auto_takes_bfloat16_only_where_it_is_native(monkeypatch, native, expected, kind):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: native)

    class Device:
        type = kind

    choice = choose_dtype("auto", Device())
    assert choice.dtype == expected
    assert "CPU" in choice.why


def remove(name):
    return lambda folder: (folder / name).unlink()


def as_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def not_json(folder):
    (folder / "config.json").write_text("{")


def change(**entries):
    def apply(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **entries}))

    return apply


def cut_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (shutil.rmtree, ["there is no model folder"]),
        (remove("config.json"), ["has no config.json"]),
        (remove("model.safetensors"), ["has no *.safetensors"]),
        (as_pickle, ["has no *.safetensors", "pickles can run code"]),
        (not_json, ["is not readable as JSON"]),
        (change(model_type="martian", architectures=["MartianLM"]), ["MartianLM", "martian"]),
        (change(auto_map={"AutoModelForCausalLM": "x.Y"}), ["its own modelling code"]),
        (cut_weights, ["LlamaForCausalLM", "cannot be loaded"]),
    ],
)
def test_a_folder_that_cannot_be_used_gives_one_clear_line(folder, damage, words):
    damage(folder)
    with pytest.raises(ModelError) as error:
        load_model(folder, CPU)
    message = str(error.value)
    assert all(word in message for word in [*words, folder.name])
    assert "\n" not in message


def test_an_unknown_dtype_is_refused(folder):
    with pytest.raises(ModelError, match="'int3' is unknown; use one of auto, float32"):
        load_model(folder, CPU, "int3")
