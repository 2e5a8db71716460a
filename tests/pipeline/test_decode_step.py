import pytest
import torch
import transformers
from packaging.version import Version

from gapless.errors import UsageError
from gapless.pipeline.decode_step import DecodeStep
from gapless.pipeline.op_audit import OpAudit
from tests.tiny_model import generate, tiny_llama, to_device

PROMPTS = [[1, 5, 9, 40], [1, 7], [1, 60, 61, 62, 63, 64, 65, 66], [3]]


def decode(step, prompts, new_tokens):
    step.prefill(prompts)
    columns = [step.tokens.tolist()]
    for _ in range(new_tokens - 1):
        step.submit()
        columns.append(step.tokens.tolist())
    return [list(row) for row in zip(*columns, strict=True)]


def test_rows_of_any_length_give_the_tokens_of_transformers(model, reference):
    found = decode(DecodeStep(model, 4, 64), PROMPTS, 40)
    assert found == [generate(reference, prompt, 40) for prompt in PROMPTS]


def test_a_row_in_a_batch_equals_the_row_alone(model):
    batch = decode(DecodeStep(model, 4, 48), PROMPTS, 30)
    alone = [decode(DecodeStep(model, 1, 48), [prompt], 30)[0] for prompt in PROMPTS]
    assert batch == alone


def test_the_context_may_be_filled_to_its_last_position(model, reference):
    found = decode(DecodeStep(model, 1, 10), [PROMPTS[0]], 7)
    assert found == [generate(reference, PROMPTS[0], 7)]


def test_a_prefill_forgets_what_was_before(model):
    step = DecodeStep(model, 2, 64)
    first = decode(step, [PROMPTS[2], PROMPTS[0]], 20)
    decode(step, [PROMPTS[1], PROMPTS[2]], 30)
    assert decode(step, [PROMPTS[2], PROMPTS[0]], 20) == first


def test_room_is_what_the_longest_prompt_leaves(model):
    step = DecodeStep(model, 2, 16)
    step.prefill([[1, 2, 3], [1]])
    assert step.room == 13


def test_the_state_stays_in_the_same_memory(model):
    step = DecodeStep(model, 2, 32)
    buffers = (step.tokens, step.positions, step.cache.layers[0].keys)
    before = [buffer.data_ptr() for buffer in buffers]
    decode(step, [[1, 2, 3], [1]], 8)
    assert [buffer.data_ptr() for buffer in buffers] == before
    assert step.positions.tolist() == [3 + 7, 1 + 7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_never_waits_for_the_device(reference, dtype):
    import copy

    step = DecodeStep(copy.deepcopy(reference).to(dtype), 2, 32)
    step.prefill([[1, 2, 3], [1]])
    with OpAudit() as audit:
        step.submit()
    assert not audit.report().host_syncs


def test_the_number_of_operators_per_layer_is_known():
    def kernels(layers):
        step = DecodeStep(tiny_llama(layers=layers), 2, 32)
        step.prefill([[1, 2, 3], [1]])
        with OpAudit() as audit:
            step.submit()
        return audit.report().kernel_count

    per_layer = kernels(3) - kernels(2)
    # Before 5.20, transformers copies keys and values for the heads that share them.
    copies = 2 if Version(transformers.__version__) < Version("5.20") else 0
    assert per_layer <= 36 + copies
    assert kernels(2) - 2 * per_layer <= 20


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([[1]], ["1 prompts", "2 rows"]),
        ([[1], []], ["prompt 1", "no tokens"]),
        ([[1], [1] * 17], ["prompt 1", "17 tokens", "16", "--context"]),
    ],
)
def test_wrong_prompts_are_refused_before_anything_runs(reference, prompts, words):
    step = DecodeStep(reference, 2, 16)
    with OpAudit() as audit, pytest.raises(UsageError) as error:
        step.prefill(prompts)
    assert all(word in str(error.value) for word in words)
    assert audit.report().kernel_count == 0


def test_a_context_beyond_the_models_is_refused(reference):
    with pytest.raises(UsageError, match=r"97 positions .* the model has 96; use --context 96"):
        DecodeStep(reference, 1, 97)


@pytest.mark.parametrize(("rows", "context"), [(0, 8), (1, 0)])
def test_nothing_to_hold_is_refused(reference, rows, context):
    with pytest.raises(UsageError, match="at least 1"):
        DecodeStep(reference, rows, context)


def test_attention_that_is_not_full_is_refused(reference):
    import copy

    changed = copy.deepcopy(reference)
    changed.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(UsageError, match="full_attention, sliding_attention"):
        DecodeStep(changed, 1, 8)


def test_a_cache_larger_than_memory_is_refused_with_both_sizes(device):
    model = to_device(tiny_llama(context=10**13), device)
    with pytest.raises(torch.OutOfMemoryError) as error:
        DecodeStep(model, 1, 10**12)
    assert "the KV cache for 1 x 1000000000000 positions needs" in str(error.value)
    assert "are free" in str(error.value)
    assert "--context" in str(error.value)
