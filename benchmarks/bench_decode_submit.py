"""What one decode step costs the host, in microseconds: graph replay, token copy, and event.

A model of SmolLM2-135M's shape with random weights, double-buffered, so that the host's caches are
as cold as they are in a real loop: the device reads half a gigabyte between two submissions.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gapless.pipeline.decode_loop import DOUBLE_BUFFERED, DecodeLoop
from gapless.pipeline.decode_step import DecodeStep
from gapless.pipeline.step_program import prepare

_STEPS = 64
_PROMPT = list(range(1, 33))


def submit_times_us(device: torch.device) -> list[float]:
    """Host time of each submission but the first few, sorted."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False).to(device)
    model.tie_weights()
    program = prepare(DecodeStep(model, 1, 128))
    program.prefill([_PROMPT])
    results = list(DecodeLoop(program, DOUBLE_BUFFERED).run(_STEPS))
    return sorted((r.submit_end_ns - r.submit_start_ns) / 1e3 for r in results[4:])


def main() -> None:
    """Measure and print; needs an accelerator."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        print("no accelerator: nothing to measure")
        return
    times_us = submit_times_us(device)
    p50, p99 = times_us[len(times_us) // 2], times_us[int(len(times_us) * 0.99)]
    print(f"decode step on {device}: host {p50:.1f} us p50, {p99:.1f} us p99")


if __name__ == "__main__":
    main()
