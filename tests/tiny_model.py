"""A causal language model small enough for a test, with random weights and a tokenizer."""

import torch

WORDS = [f"w{number}" for number in range(90)]
VOCABULARY = ["<unk>", "<s>", "</s>", *WORDS]
STOP = 2


def tiny_llama(context=96, layers=2, dtype=torch.float32, seed=0, **changes):
    """Weights are far from zero, so that the next token depends on the ones before it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=STOP,
        pad_token_id=STOP,
        tie_word_embeddings=True,
        **changes,
    )
    model = LlamaForCausalLM(config).to(dtype).eval()
    return model.requires_grad_(False)


def tiny_tokenizer():
    """One token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def save_tiny(folder, chat=True):
    """Write model and tokenizer as a model folder; returns the folder."""
    tiny_llama().save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    if chat:
        tokenizer.chat_template = (
            "{% for m in messages %}{{ 'w1 ' + m['content'] }}{% endfor %}"
            "{% if add_generation_prompt %}{{ ' w2' }}{% endif %}"
        )
    tokenizer.save_pretrained(folder)
    return folder


def to_device(model, device):
    """A copy of the model on a device, its shared weights still shared."""
    import copy

    moved = copy.deepcopy(model).to(device)
    moved.tie_weights()
    return moved


def generate(model, prompt, new_tokens, stop=False):
    """What transformers itself generates greedily."""
    ids = torch.tensor([prompt])
    # An id outside the vocabulary never stops it.
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=STOP if stop else 10**6,
        pad_token_id=STOP,
    )
    return output[0, len(prompt) :].tolist()
