"""Sequences that join and leave, at any depth, give what each gives alone."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.errors import UsageError
from gapless.pipeline import DecodeLoop, PipelineWarning, Sampling
from tests.tiny_model import STOP, VOCABULARY, generate, tiny_llama, to_device

# Small matrices on many threads spend their time waiting for each other.
pytestmark = pytest.mark.usefixtures("one_thread")
PROMPTS = [[1, 5, 9, 40], [1, 7], [1, 60, 61, 62, 63, 64, 65, 66], [1, 8, 8], [1, 90]]
WARM = Sampling(temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, seed=11)


def answers(loop: DecodeLoop) -> dict[int, list[int]]:
    """Run to the end, checking that the steps tell what the loop keeps."""
    told: dict[int, list[int]] = {}
    for step in loop.run():
        for token in step.tokens:
            told.setdefault(token.sequence, []).append(token.token)
    assert all(loop.tokens(number) == tokens for number, tokens in told.items())
    return told


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_more_sequences_than_rows_give_the_tokens_of_transformers(model, reference, depth):
    with DecodeLoop(model, rows=2, context=64, depth=depth) as loop:
        numbers = [loop.add(p, 10 + 7 * i) for i, p in enumerate(PROMPTS)]
        found = answers(loop)
        assert [found[number] for number in numbers] == [
            generate(reference, p, 10 + 7 * i) for i, p in enumerate(PROMPTS)
        ]
        assert {loop.finish_reason(number) for number in numbers} == {"length"}
        assert loop.statistics.in_flight_most == depth
        assert loop.unfinished == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_stop_token_ends_one_sequence_and_its_row_is_used_again(model, reference, depth):
    plain = generate(reference, PROMPTS[0], 30)
    stop = plain[6]
    with DecodeLoop(model, rows=1, context=64, depth=depth) as loop:
        first = loop.add(PROMPTS[0], 30, stop_tokens=[stop, STOP])
        second = loop.add(PROMPTS[2], 12)
        found = answers(loop)
        assert found[first] == plain[: plain.index(stop) + 1]
        assert loop.finish_reason(first) == "stop"
        assert found[second] == generate(reference, PROMPTS[2], 12)
        # What was under way when the host learnt of the stop.
        assert loop.statistics.dropped_tokens == depth - 1


@pytest.mark.parametrize("depth", [1, 2])
def test_joining_while_others_run(model, reference, depth):
    with DecodeLoop(model, rows=3, context=64, depth=depth) as loop:
        numbers = [loop.add(PROMPTS[0], 20)]
        found: dict[int, list[int]] = {}
        for count, step in enumerate(loop.run()):
            for token in step.tokens:
                found.setdefault(token.sequence, []).append(token.token)
            if count in (3, 4, 8):
                numbers.append(loop.add(PROMPTS[len(numbers)], 20))
        assert [found[number] for number in numbers] == [
            generate(reference, PROMPTS[i], 20) for i in range(4)
        ]


@pytest.mark.parametrize("depth", [1, 2])
def test_removing_frees_the_row_and_leaves_the_others_alone(model, reference, depth):
    with DecodeLoop(model, rows=2, context=64, depth=depth) as loop:
        gone, stays = loop.add(PROMPTS[0], 50), loop.add(PROMPTS[1], 20)
        waits, never = loop.add(PROMPTS[2], 8), loop.add(PROMPTS[3], 8)
        for count, _ in enumerate(loop.run()):
            if count == 4:
                loop.remove(gone)
                loop.remove(never)
                loop.remove(gone)  # nothing to do
        assert loop.tokens(gone) == generate(reference, PROMPTS[0], 50)[: len(loop.tokens(gone))]
        assert 0 < len(loop.tokens(gone)) < 10
        assert loop.tokens(never) == []
        assert loop.finish_reason(gone) == loop.finish_reason(never) == "removed"
        assert loop.tokens(stays) == generate(reference, PROMPTS[1], 20)
        assert loop.tokens(waits) == generate(reference, PROMPTS[2], 8)
        loop.forget(gone)
        with pytest.raises(KeyError, match="there is no sequence 0"):
            loop.tokens(gone)


@pytest.mark.parametrize("kind", [GeneratorExit, KeyboardInterrupt])
@pytest.mark.parametrize("depth", [1, 2])
def test_an_iteration_that_ends_early_loses_nothing(model, reference, depth, kind):
    with DecodeLoop(model, rows=2, context=64, depth=depth) as loop:
        numbers = [loop.add(prompt, 15) for prompt in PROMPTS[:3]]
        while loop.unfinished:
            steps = loop.run()
            next(steps)
            next(steps, None)
            with contextlib.suppress(kind, StopIteration):
                steps.throw(kind)
        assert [loop.tokens(number) for number in numbers] == [
            generate(reference, prompt, 15) for prompt in PROMPTS[:3]
        ]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_seed_gives_the_same_answer_whatever_shares_the_batch(model, depth):
    def answer(others: int) -> list[int]:
        with DecodeLoop(model, rows=3, context=64, depth=depth) as loop:
            for i in range(others):
                sampling = [Sampling(temperature=1.5, seed=i), Sampling()][i % 2]
                loop.add(PROMPTS[i], 3 + 4 * i, sampling)
            number = loop.add(PROMPTS[0], 25, WARM)
            answers(loop)
            return loop.tokens(number)

    alone = answer(0)
    assert len(alone) == 25
    assert len(set(alone)) > 3
    for others in (2, 4):
        assert answer(others) == alone


REQUEST = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, len(VOCABULARY) - 1), min_size=1, max_size=6),
        "max_new_tokens": st.integers(1, 9),
        "stop_tokens": st.sets(st.integers(0, len(VOCABULARY) - 1), max_size=8),
        "sampling": st.builds(
            Sampling,
            temperature=st.sampled_from([0.0, 0.7, 2.0]),
            top_k=st.sampled_from([0, 1, 20]),
            top_p=st.sampled_from([1.0, 0.8]),
            min_p=st.sampled_from([0.0, 0.05]),
            repetition_penalty=st.sampled_from([1.0, 1.3]),
            presence_penalty=st.sampled_from([0.0, 0.5]),
            frequency_penalty=st.sampled_from([0.0, -0.3]),
            seed=st.integers(0, 2**63 - 1),
        ),
        "joins_at": st.integers(0, 12),
        "leaves_after": st.none() | st.integers(0, 5),
    }
)


@pytest.fixture(scope="module")
def loops():
    """One loop per depth, used again and again: what a sequence leaves behind must not matter."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    model = to_device(tiny_llama(), accelerator or torch.device("cpu"))
    made = {depth: DecodeLoop(model, rows=2, context=16, depth=depth) for depth in (1, 2, 3)}
    yield made
    for loop in made.values():
        loop.close()


@settings(max_examples=15, deadline=None)
@given(requests=st.lists(REQUEST, min_size=1, max_size=6))
def test_the_depth_never_shows(loops, requests):
    def run(loop: DecodeLoop) -> list[tuple[list[int], str | None]]:
        waiting = sorted(enumerate(requests), key=lambda pair: pair[1]["joins_at"])
        numbers: dict[int, int] = {}
        count = 0
        while waiting or loop.unfinished:
            while waiting and (waiting[0][1]["joins_at"] <= count or not loop.unfinished):
                index, wanted = waiting.pop(0)
                numbers[index] = loop.add(
                    wanted["prompt"],
                    wanted["max_new_tokens"],
                    wanted["sampling"],
                    wanted["stop_tokens"],
                )
            for step in loop.run():
                count += 1
                for token in step.tokens:
                    index = next(i for i, n in numbers.items() if n == token.sequence)
                    after = requests[index]["leaves_after"]
                    if after is not None and len(loop.tokens(token.sequence)) > after:
                        loop.remove(token.sequence)
                break  # to let others join
        return [
            (loop.tokens(numbers[i]), loop.finish_reason(numbers[i])) for i in range(len(requests))
        ]

    sequential = run(loops[1])
    assert run(loops[2]) == sequential
    assert run(loops[3]) == sequential


def test_sampling_on_the_host_is_said_counted_and_right(model, reference):
    with pytest.warns(PipelineWarning, match="sampling is on the host.*at depth 1 instead of 2"):
        loop = DecodeLoop(
            model, rows=2, context=64, host_sampler=lambda logits: logits.argmax(dim=-1)
        )
    with loop:
        numbers = [loop.add(prompt, 12) for prompt in PROMPTS[:3]]
        found = answers(loop)
        assert [found[n] for n in numbers] == [generate(reference, p, 12) for p in PROMPTS[:3]]
        assert loop.depth == loop.statistics.in_flight_most == 1
        assert loop.statistics.sequential_steps == loop.statistics.steps
        assert "the next step needs a token" in (loop.statistics.no_overlap_reason or "")
        with pytest.raises(UsageError, match="host_sampler"):
            loop.add([1], 3, WARM)


def test_a_host_sampler_that_fails_ends_what_runs_and_nothing_else(model, reference):
    calls = []

    def sample(logits: torch.Tensor) -> torch.Tensor:
        calls.append(logits.shape)
        if len(calls) == 4:
            raise ZeroDivisionError
        return logits.argmax(dim=-1)

    with DecodeLoop(model, context=64, depth=1, host_sampler=sample) as loop:
        first, second = loop.add(PROMPTS[0], 10), loop.add(PROMPTS[1], 10)
        with pytest.raises(ZeroDivisionError):
            answers(loop)
        assert loop.finish_reason(first) == "failed"
        assert loop.tokens(first) == generate(reference, PROMPTS[0], 3)
        answers(loop)
        assert loop.tokens(second) == generate(reference, PROMPTS[1], 10)


def test_a_failure_while_several_join_loses_none_of_them(model):
    def sample(logits: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    with DecodeLoop(model, rows=2, context=64, depth=1, host_sampler=sample) as loop:
        numbers = [loop.add(PROMPTS[0], 3), loop.add(PROMPTS[1], 3)]
        with pytest.raises(ZeroDivisionError):
            answers(loop)
        assert [loop.finish_reason(number) for number in numbers] == ["failed", "failed"]
        assert loop.unfinished == 0


@pytest.mark.parametrize(
    ("returned", "match"),
    [
        (torch.zeros(3, dtype=torch.int64), r"returned torch.int64 \(3,\) for 1 rows"),
        (torch.zeros(1), r"returned torch.float32 \(1,\) for 1 rows"),
        ([0], "returned list for 1 rows"),
        (torch.tensor([10**6]), r"tokens \[1000000\]; they must be from 0 to"),
    ],
)
def test_what_a_host_sampler_returns_is_checked(model, returned, match):
    with DecodeLoop(model, context=64, depth=1, host_sampler=lambda _: returned) as loop:
        loop.add([1], 3)
        with pytest.raises(UsageError, match=match):
            answers(loop)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failure_of_the_device_reaches_the_loop_and_those_that_wait_go_on(reference, depth):
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != "gapless":
        pytest.skip("some devices do not recover from a failure, and the CPU has none later on")
    with DecodeLoop(to_device(reference, accelerator), context=64, depth=depth) as loop:
        first, second = loop.add(PROMPTS[0], 20), loop.add(PROMPTS[1], 20)
        for _ in zip(range(4), loop.run(), strict=False):
            pass
        torch.zeros(3, device="gapless")[torch.tensor([7], device="gapless")]
        with pytest.raises(RuntimeError, match="out of bounds"):
            answers(loop)
        assert loop.finish_reason(first) == "failed"
        told = loop.tokens(first)
        assert told == generate(reference, PROMPTS[0], 20)[: len(told)]
        answers(loop)
        assert loop.tokens(second) == generate(reference, PROMPTS[1], 20)


@pytest.mark.parametrize(
    ("prompt", "new", "match"),
    [
        ([], 3, "has no tokens"),
        ([1, 10**6], 3, "the token 1000000; ids are whole numbers, 0 to"),
        ([1.5], 3, "the token 1.5; ids are whole numbers"),
        ("hi", 3, "the token 'h'"),
        (7, 3, "the prompt has 7; give a list of token ids"),
        ([1], 2.5, "2.5 new tokens"),
        ([-1], 3, "the token -1"),
        ([1, 2], 0, "0 new tokens"),
        ([1, 2, 3], 15, "need 17 positions and the loop has 16.*context=17"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(loops, prompt, new, match):
    with pytest.raises(UsageError, match=match):
        loops[1].add(prompt, new)
    assert loops[1].unfinished == 0


def test_a_greedy_loop_says_so_and_a_closed_one_too(model):
    loop = DecodeLoop(model, context=16, samples=False)
    with pytest.raises(UsageError, match="samples=False"):
        loop.add([1], 3, WARM)
    number = loop.add([1], 3)
    with pytest.raises(RuntimeError, match="has not ended"):
        loop.forget(number)
    loop.close()
    loop.close()
    assert loop.finish_reason(number) == "removed"
    for call in (lambda: loop.add([1], 3), lambda: next(loop.run())):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    with pytest.raises(UsageError, match="depth must be at least 1, a whole number; got 0"):
        DecodeLoop(model, context=16, depth=0)
    with pytest.raises(UsageError, match=r"got 1\.5"):
        DecodeLoop(model, context=16, depth=1.5)
    with pytest.raises(UsageError, match="the model is a Linear"):
        DecodeLoop(torch.nn.Linear(2, 2))


def test_what_goes_with_a_request_is_checked(loops):
    with pytest.raises(UsageError, match="stop_tokens has the token 1000"):
        loops[1].add([1], 3, stop_tokens=[1000])
    with pytest.raises(UsageError, match="sampling is a dict; it must be a Sampling"):
        loops[1].add([1], 3, {"temperature": 1})
    assert loops[1].unfinished == 0
