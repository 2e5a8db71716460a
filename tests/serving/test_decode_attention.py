"""Attention of decode steps, compared with vLLM's kernel and with a formula."""

from dataclasses import dataclass

import pytest
import torch
import vllm._custom_ops  # noqa: F401

from gapless import _C
from gapless.serving.kernels import queue_kernels

pytestmark = pytest.mark.skipif(
    not _C.has_avx2(), reason="this processor has no AVX2, FMA and F16C"
)
queue_kernels()

_TOLERANCES = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-6},
    torch.float16: {"rtol": 2e-3, "atol": 1e-4},
    torch.bfloat16: {"rtol": 2e-2, "atol": 1e-3},
}


@dataclass(frozen=True)
class Case:
    """A decode step; lengths count the new token."""

    lengths: tuple[int, ...]
    heads: int = 9
    kv_heads: int = 3
    dim: int = 64
    block: int = 32
    dtype: torch.dtype = torch.float32
    window: int = -1
    softcap: float = 0.0
    padding: int = 0  # sequences without a token


class Step:
    """A step's operands on the device; what is not cached is not a number."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.case = case
        count, padded = len(case.lengths), len(case.lengths) + case.padding
        needed = [-(-length // case.block) for length in case.lengths]
        blocks = torch.randperm(sum(needed) + 1)
        table = torch.zeros(padded, max(needed), dtype=torch.int32)
        cache = torch.full(
            (len(blocks), case.kv_heads, 2, case.block * case.dim), float("nan"), dtype=case.dtype
        )
        query = torch.randn(padded, case.heads, case.dim).to(case.dtype)
        both = torch.randn(padded, case.kv_heads, 2, case.dim).to(case.dtype)
        self.query, self.both = query.to("gapless"), both.to("gapless")
        self.key, self.value = self.both[:, :, 0], self.both[:, :, 1]
        self.keys, self.values = [], []
        slots = torch.full((padded,), -1, dtype=torch.int64)
        for i, length in enumerate(case.lengths):
            own, blocks = blocks[: needed[i]], blocks[needed[i] :]
            table[i, : needed[i]] = own
            keys = torch.randn(length, case.kv_heads, case.dim).to(case.dtype)
            values = torch.randn(length, case.kv_heads, case.dim).to(case.dtype)
            for t in range(length - 1):
                block, place = own[t // case.block], t % case.block
                head = cache[block]
                head[:, 0].view(case.kv_heads, case.dim, case.block)[:, :, place] = keys[t]
                head[:, 1].view(case.kv_heads, case.block, case.dim)[:, place] = values[t]
            keys[-1], values[-1] = both[i, :, 0], both[i, :, 1]
            slots[i] = own[-1] * case.block + (length - 1) % case.block
            self.keys.append(keys)
            self.values.append(values)
        starts = torch.arange(padded + 1, dtype=torch.int32).clamp(max=count)
        lengths = torch.tensor([*case.lengths, *[0] * case.padding], dtype=torch.int32)
        self.cache = cache.view(len(cache), case.kv_heads, case.block, 2 * case.dim).to("gapless")
        self.starts, self.lengths, self.table, self.slots = (
            part.to("gapless") for part in (starts, lengths, table, slots)
        )

    def attend(self, stores: bool = True) -> torch.Tensor:
        """The kernel's output, zeros where there is no sequence."""
        output = torch.zeros_like(self.query)
        torch.ops.gapless.decode_attention(
            self.query,
            self.key if stores else None,
            self.value if stores else None,
            self.cache,
            output,
            self.starts,
            self.lengths,
            self.table,
            self.slots if stores else None,
            self.case.dim**-0.5,
            self.case.window,
            self.case.softcap,
        )
        return output

    def attend_as_vllm(self) -> torch.Tensor:
        """The output of vLLM's kernel, on the same operands."""
        case, count = self.case, len(self.case.lengths)
        plan = torch.ops.gapless.new_attention_plan()
        starts, lengths = self.starts[: count + 1].clone(), self.lengths[:count].clone()
        torch.ops.gapless.plan_attention(
            plan,
            lengths,
            starts,
            case.heads,
            case.kv_heads,
            case.dim,
            case.dtype,
            True,
            case.window,
            "vec",
            True,
            "auto",
        )
        output = torch.zeros_like(self.query[:count])
        torch.ops.gapless.paged_attention(
            plan,
            self.query[:count],
            self.key[:count],
            self.value[:count],
            self.cache,
            output,
            starts,
            lengths,
            self.table[:count],
            self.slots[:count],
            case.dim**-0.5,
            True,
            None,
            case.window,
            case.softcap,
            None,
            "vec",
            1.0,
            1.0,
            "auto",
        )
        return output

    def exact(self) -> torch.Tensor:
        """softmax(q k / sqrt(dim)) v in float64 [sequences, heads, dim]."""
        case, outputs, query = self.case, [], self.query.cpu()
        for i, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            seen = slice(max(0, len(keys) - case.window) if case.window > 0 else 0, None)
            k, v = (
                part[seen].double().repeat_interleave(case.heads // case.kv_heads, 1)
                for part in (keys, values)
            )
            scores = torch.einsum("hd,thd->ht", query[i].double(), k) * case.dim**-0.5
            if case.softcap:
                scores = case.softcap * torch.tanh(scores / case.softcap)
            outputs.append(torch.einsum("ht,thd->hd", scores.softmax(-1), v))
        return torch.stack(outputs)


CASES = [
    Case((1,)),
    Case((1, 8, 9, 31, 32, 33, 64, 65, 100, 127)),
    Case((17, 300), block=128),
    Case((511, 512, 513, 1024, 1500, 40)),
    Case((700,), block=96),
    Case((45, 60), heads=8, kv_heads=8),
    Case((45, 60), heads=8, kv_heads=4),
    Case((45, 60), heads=8, kv_heads=2, dim=128),
    Case((45, 60), heads=5, kv_heads=1, dim=96),
    Case((45, 600), heads=8, kv_heads=1, dim=256),
    Case((45, 60, 7), heads=7, kv_heads=1, dim=32, padding=5),
    Case((5, 20, 21, 40, 700, 1300), window=20),
    Case((5, 600, 1300), window=530, block=64),
    Case((45, 60, 900), softcap=2.0),
    Case((45, 33, 1), dtype=torch.bfloat16),
    Case((45, 33, 600), dtype=torch.float16),
    Case((45, 33, 600), dtype=torch.bfloat16, heads=4, kv_heads=1, dim=256, window=512),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_the_formula_and_as_vllm(case):
    step = Step(case)
    count = len(case.lengths)
    found = step.attend()
    assert not found[count:].any()
    tolerance = _TOLERANCES[case.dtype]
    torch.testing.assert_close(found[:count].cpu().double(), step.exact(), **tolerance)
    # The new token lies where vLLM's kernel finds it: the second time nothing is stored.
    assert torch.equal(step.attend(stores=False), found)
    step.cache.nan_to_num_()  # vLLM's multiplies what lies beside the tokens by zero
    torch.testing.assert_close(step.attend_as_vllm(), found[:count], **tolerance)


def test_a_sequence_does_not_depend_on_the_others():
    case = Case((40, 1300, 513, 77, 600, 9))
    step = Step(case)
    together = step.attend()
    for i in range(len(case.lengths)):
        starts = torch.tensor([0] * (i + 1) + [1] * (len(case.lengths) - i), dtype=torch.int32)
        alone = torch.zeros(1, case.heads, case.dim, device="gapless")
        with torch.gapless.team_limit(1):
            torch.ops.gapless.decode_attention(
                step.query[i : i + 1],
                None,
                None,
                step.cache,
                alone,
                starts.to("gapless"),
                step.lengths,
                step.table,
                None,
                case.dim**-0.5,
                -1,
                0.0,
            )
        assert torch.equal(alone[0], together[i]), case.lengths[i]


def test_in_a_graph_lengths_are_those_of_the_replay():
    case = Case((3, 30, 60))
    step = Step(case)
    graph = torch.accelerator.Graph()
    with torch.Stream("gapless"), graph:
        output = step.attend()
    for lengths in ((3, 30, 60), (2, 17, 33)):
        step.lengths.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        assert torch.equal(output, step.attend()), lengths


def test_a_step_with_prompts_is_refused():
    step = Step(Case((3, 30)))
    step.starts.copy_(torch.tensor([0, 2, 2], dtype=torch.int32))

    def attend():
        step.attend()
        torch.accelerator.synchronize()

    with pytest.raises(RuntimeError, match=r"sequence 0 has 2 new tokens; it is for one"):
        attend()


def test_what_does_not_fit_is_refused():
    step = Step(Case((3, 30)))
    step.query = step.query.half()

    def attend():
        step.attend()
        torch.accelerator.synchronize()

    with pytest.raises(RuntimeError, match=r"decode_attention: .* do not fit"):
        attend()
