"""The sampler keeps what transformers' processors keep, and draws from that evenly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from gapless.errors import UsageError
from gapless.pipeline.sampler import Sampler
from gapless.pipeline.sampling import Sampling
from gapless.pipeline.uniform import uniform

VOCABULARY = 30
PROMPT = [1, 4, 4, 9]


def logits_of(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2


def draw(sampling: Sampling, logits: torch.Tensor, count: int, device: torch.device) -> list[int]:
    """The first token of sequences that differ in their seed."""
    sampler = Sampler(count, VOCABULARY, device)
    for row in range(count):
        values = {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}
        sampler.join(row, PROMPT, Sampling(**{**values, "seed": row}))
    tokens = torch.zeros(count, dtype=torch.int64, device=device)
    sampler.sample(logits.to(device).expand(count, VOCABULARY), tokens)
    return tokens.tolist()


def probabilities(sampling: Sampling, logits: torch.Tensor) -> torch.Tensor:
    """What transformers would draw from."""
    processors = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        processors.append(MinPLogitsWarper(sampling.min_p))
    return processors(torch.tensor([PROMPT]), logits.clone()).softmax(dim=-1)[0]


CASES = {
    "temperature": Sampling(temperature=0.8),
    "hot": Sampling(temperature=3.0),
    "top_k": Sampling(temperature=1.0, top_k=5),
    "top_k beyond the vocabulary": Sampling(temperature=1.0, top_k=500),
    "top_p": Sampling(temperature=1.0, top_p=0.7),
    "top_p of next to nothing": Sampling(temperature=1.0, top_p=1e-6),
    "min_p": Sampling(temperature=1.0, min_p=0.1),
    "repetition": Sampling(temperature=1.0, repetition_penalty=1.8),
    "all": Sampling(temperature=0.9, top_k=12, top_p=0.9, min_p=0.05, repetition_penalty=1.2),
}


@pytest.mark.parametrize("name", CASES)
def test_draws_are_distributed_as_transformers_would(name, device):
    count = 2000
    logits = logits_of(3)
    expected = probabilities(CASES[name], logits)
    found = torch.bincount(
        torch.tensor(draw(CASES[name], logits, count, device)), minlength=VOCABULARY
    )
    assert not found[expected == 0].any()  # nothing that is filtered out
    kept = expected > 0
    # The seeds are fixed, so this either always holds or never: a chi-squared of the kept tokens.
    wanted = expected[kept] * count
    chi_squared = ((found[kept] - wanted) ** 2 / wanted).sum().item()
    freedom = int(kept.sum()) - 1
    assert chi_squared <= freedom + 5 * (2 * freedom) ** 0.5


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 35),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
)
def test_nothing_is_drawn_that_transformers_would_filter_out(
    seed, temperature, top_k, top_p, min_p
):
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = logits_of(seed)
    expected = probabilities(sampling, logits)
    # Where a filter's limit falls between two tokens is a matter of the last bit.
    for token in draw(sampling, logits, 20, torch.device("cpu")):
        close = Sampling(temperature=temperature, top_k=top_k, top_p=min(1, top_p + 1e-5))
        assert expected[token] > 0 or probabilities(close, logits)[token] > 0


def test_penalties_of_the_answer_are_those_of_the_field(device):
    """mu - presence * (count > 0) - frequency * count, as in OpenAI's interface."""
    logits = torch.zeros(1, VOCABULARY)
    logits[0, [2, 5, 7]] = torch.tensor([3.0, 2.6, 2.0])
    sampling = Sampling(presence_penalty=0.3, frequency_penalty=0.2, seed=0)
    sampler = Sampler(1, VOCABULARY, device)
    sampler.join(0, PROMPT, sampling)
    tokens = torch.zeros(1, dtype=torch.int64, device=device)
    found, counts = [], np.zeros(VOCABULARY)
    expected = []
    for _ in range(12):
        sampler.sample(logits.to(device), tokens)
        found += tokens.tolist()
        scores = logits[0].numpy() - 0.3 * (counts > 0) - 0.2 * counts
        expected.append(int(scores.argmax()))
        counts[expected[-1]] += 1
    assert found == expected
    assert len(set(found)) == 3
    sampler.join(0, PROMPT, sampling)  # another sequence starts from nothing
    sampler.sample(logits.to(device), tokens)
    assert tokens.tolist() == [2]


def test_the_prompt_is_repeated_too(device):
    logits = torch.zeros(1, VOCABULARY)
    logits[0, [4, 2]] = torch.tensor([3.0, 2.0])
    logits[0, 9] = -1.0
    for penalty, expected in ((1.0, 4), (1.4, 4), (1.6, 2)):
        sampler = Sampler(1, VOCABULARY, device)
        sampler.join(0, PROMPT, Sampling(repetition_penalty=penalty, seed=1))
        tokens = torch.zeros(1, dtype=torch.int64, device=device)
        sampler.sample(logits.to(device), tokens)
        assert tokens.tolist() == [expected]


def test_equal_logits_are_told_apart_by_their_ids(device):
    assert draw(Sampling(), torch.zeros(1, VOCABULARY), 3, device) == [0, 0, 0]
    assert set(draw(Sampling(temperature=1.0), torch.zeros(1, VOCABULARY), 300, device)) == set(
        range(VOCABULARY)
    )


def test_the_device_draws_what_the_cpu_draws(device):
    for seed in range(5):
        logits = logits_of(seed)
        for sampling in CASES.values():
            assert draw(sampling, logits, 30, device) == draw(
                sampling, logits, 30, torch.device("cpu")
            )


def test_uniform_numbers_are_splitmix64():
    """Against the published algorithm, in Python's integers."""
    mask = 2**64 - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    pairs = [(0, 0), (0, 1), (1, 0), (2**63 - 1, 7), (123456789, 10**9)]
    for seed, position in pairs:
        state = (mix(seed) + (position + 1) * 0x9E3779B97F4A7C15) & mask
        expected = (mix(state) >> 11) * 2.0**-53
        assert uniform(torch.tensor(seed), torch.tensor(position)).item() == expected


def test_uniform_numbers_are_even_along_seeds_and_positions():
    seeds, positions = torch.arange(300).view(-1, 1), torch.arange(300).view(1, -1)
    numbers = uniform(seeds.expand(300, 300), positions.expand(300, 300))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert len(numbers.unique()) == numbers.numel()
    for along in (0, 1):
        assert (numbers.mean(along) - 0.5).abs().max() < 5 * (1 / 12 / 300) ** 0.5
    assert abs(torch.corrcoef(numbers[:2])[0, 1]) < 0.2
    assert abs(torch.corrcoef(numbers[:, :2].T)[0, 1]) < 0.2


def test_a_seed_that_is_not_given_comes_from_torch(device):
    def drawn() -> list[int]:
        torch.manual_seed(5)
        sampler = Sampler(8, VOCABULARY, device)
        for row in range(8):
            sampler.join(row, PROMPT, Sampling(temperature=1.0))
        tokens = torch.zeros(8, dtype=torch.int64, device=device)
        sampler.sample(torch.zeros(8, VOCABULARY, device=device), tokens)
        return tokens.tolist()

    first = drawn()
    assert len(set(first)) > 1
    assert drawn() == first


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"temperature": -1.0}, r"temperature is -1.0; it must be 0 \(greedy\) or more"),
        ({"temperature": float("nan")}, "temperature is nan; it must be a finite number"),
        ({"temperature": "a"}, "temperature is 'a'; it must be a finite number"),
        ({"top_k": 1.5}, "top_k is 1.5; it must be a whole number"),
        ({"seed": 1.5}, "seed is 1.5; it must be a whole number"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be above 0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": 2.0}, "min_p is 2.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
    ],
)
def test_values_out_of_range_are_refused(values, match):
    with pytest.raises(UsageError, match=match):
        Sampling(**values)
