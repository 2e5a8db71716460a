import importlib.metadata

import pytest
import torch

from gapless.models.errors import ModelError
from gapless.models.gemma3 import find_parts, join, obtain_gemma3
from gapless.models.load import load_model


def test_a_missing_part_says_what_to_install(monkeypatch, tmp_path):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ModelError, match=r"gguf-part1 is not installed; run pip install"):
        obtain_gemma3(print, tmp_path)


def test_parts_of_another_file_are_refused(tmp_path):
    parts = tuple(tmp_path / f"part{number}" for number in range(2))
    for part in parts:
        part.write_bytes(b"nonsense")
    with pytest.raises(ModelError, match=r"make a file with SHA-256 .* expected a5fd3b"):
        join(parts, tmp_path)


@pytest.mark.thorough
def test_the_converted_model_knows_english(tmp_path):
    pytest.importorskip("gguf")
    try:
        find_parts()
    except ModelError as error:
        pytest.skip(str(error))
    folder = obtain_gemma3(lambda line: None, tmp_path / "cache")
    assert not (folder / "unpacking").exists()
    loaded = load_model(folder, torch.device("cpu"), "float32")
    text = "The capital of France is Paris, and the capital of Italy is Rome."
    ids = loaded.tokenizer(text, return_tensors="pt").input_ids
    assert ids[0, 0] == loaded.tokenizer.convert_tokens_to_ids("<bos>")
    with torch.no_grad():
        surprise = loaded.model(input_ids=ids, labels=ids).loss
    assert surprise < 4  # natural logarithms for each token; by chance 12.5
