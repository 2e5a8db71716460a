"""Models of the common architectures, small enough for a test, with random weights."""

import torch

CONTEXT = 512
STOP_TEXT = "</s>"


def tokenizer():
    """One token per byte, and three special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {
        text: number for number, text in enumerate(["<pad>", "<s>", STOP_TEXT, *alphabet])
    }
    made = Tokenizer(models.BPE(vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<pad>", "<s>", STOP_TEXT])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token=STOP_TEXT, pad_token="<pad>"
    )
    fast.chat_template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    return fast


_COMMON = {
    "vocab_size": 259,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": None}),
    "mistral-window": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 32}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {}),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {"hidden_activation": "gelu_pytorch_tanh"}),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    ),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "bert": (
        "BertModel",
        "BertConfig",
        {"type_vocab_size": 2},
    ),
}


def save_adapter(folder, rank=8, seed=3):
    """A LoRA adapter for the attention of ``llama``; returns its folder as text."""
    import json

    from safetensors.torch import save_file

    torch.manual_seed(seed)
    sizes = {"q_proj": (128, 128), "v_proj": (128, 64), "o_proj": (128, 128)}
    weights = {}
    for layer in range(2):
        for name, (inputs, outputs) in sizes.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(rank, inputs)
            weights[f"{prefix}.lora_B.weight"] = torch.randn(outputs, rank) * 0.1
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted(sizes),
        "task_type": "CAUSAL_LM",
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


def save(architecture, folder, seed=0):
    """Write a model folder of that architecture; returns it as text."""
    import transformers

    model_class, config_class, changes = ARCHITECTURES[architecture]
    values = {**_COMMON, **changes}
    if architecture == "bert":
        for name in ("num_key_value_heads", "head_dim"):
            del values[name]
    torch.manual_seed(seed)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**values))
    model.to(torch.bfloat16).save_pretrained(folder)  # as checkpoints are, as a rule
    tokenizer().save_pretrained(folder)
    return str(folder)
