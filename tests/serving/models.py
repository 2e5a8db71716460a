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
    model.to(torch.float32).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)
