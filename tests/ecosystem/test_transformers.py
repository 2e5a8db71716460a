"""A model of Hugging Face transformers on the device, token for token as on the CPU."""

import copy

import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def prompt() -> dict[str, torch.Tensor]:
    tokens = torch.randint(2, 96, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[0, :4] = 0  # padded on the left
    tokens[0, :4] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def on_device(prompt: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to("gapless") for name, tensor in prompt.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"do_sample": False, "num_beams": 3},
        {"do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
        {"do_sample": False, "cache_implementation": "static"},
    ],
    ids=["greedy", "beams", "processors", "static cache"],
)
def test_generate_equals_the_cpu_token_for_token(model, prompt, options, same_threads):
    moved = copy.deepcopy(model).to("gapless")
    assert moved.lm_head.weight is moved.model.embed_tokens.weight
    options = {**options, "max_new_tokens": 20, "disable_compile": True}
    expected = model.generate(**prompt, **options)
    got = moved.generate(**on_device(prompt), **options)
    assert got.is_gapless
    assert got.tolist() == expected.tolist()


def test_sampling_repeats_with_the_seed(model, prompt):
    moved = copy.deepcopy(model).to("gapless")

    def sample() -> list[list[int]]:
        torch.manual_seed(7)
        return moved.generate(**on_device(prompt), do_sample=True, max_new_tokens=12).tolist()

    assert sample() == sample()


@pytest.mark.parametrize("device_map", ["gapless", "gapless:0", {"": "gapless"}, "auto"])
def test_device_map(model, prompt, tmp_path, device_map, same_threads):
    pytest.importorskip("accelerate", reason="device_map needs accelerate, of the extra 'demo'")
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map=device_map)
    loaded.eval()
    device = loaded.device
    if device_map != "auto":  # accelerate decides, and may choose the host
        assert device == torch.device("gapless:0")
    inputs = {name: tensor.to(device) for name, tensor in prompt.items()}
    options = {"do_sample": False, "max_new_tokens": 8}
    assert loaded.generate(**inputs, **options).tolist() == (
        model.generate(**prompt, **options).tolist()
    )


def test_training_step_equals_the_cpu(model, prompt, same_threads):
    moved = copy.deepcopy(model).to("gapless").train()
    host = copy.deepcopy(model).train()
    labels = prompt["input_ids"]
    host(**prompt, labels=labels).loss.backward()
    moved(**on_device(prompt), labels=labels.to("gapless")).loss.backward()
    for (name, got), expected in zip(moved.named_parameters(), host.parameters(), strict=True):
        assert torch.equal(got.grad.cpu(), expected.grad), name
