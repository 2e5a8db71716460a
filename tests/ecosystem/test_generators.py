"""The device's generators: seeds, states, devices, graphs."""

import pytest
import torch


def draw(generator: torch.Generator | None = None) -> list[float]:
    return torch.rand(6, device="gapless", generator=generator).tolist()


def test_a_state_goes_round():
    generator = torch.Generator("gapless").manual_seed(11)
    draw(generator)
    state = generator.get_state()
    expected = [draw(generator) for _ in range(3)]
    other = torch.Generator("gapless")
    other.set_state(state)
    assert other.initial_seed() == 11
    assert [draw(other) for _ in range(3)] == expected
    assert torch.equal(generator.get_state(), other.get_state())
    twin = generator.clone_state()
    assert draw(twin) == draw(generator)


def test_a_bad_state_is_refused():
    generator = torch.Generator("gapless")
    for state in (torch.zeros(3, dtype=torch.uint8), torch.zeros(16)):
        with pytest.raises((RuntimeError, TypeError)):
            generator.set_state(state)
    with pytest.raises((RuntimeError, TypeError)):
        generator.set_state(torch.Generator().get_state())


def test_seeds():
    generator = torch.Generator("gapless")
    assert generator.manual_seed(2**63 - 1).initial_seed() == 2**63 - 1
    assert generator.seed() == generator.initial_seed()
    first, second = generator.seed(), generator.seed()
    assert first != second
    torch.manual_seed(5)
    assert torch.gapless.initial_seed() == 5
    torch.gapless.manual_seed(6)
    assert torch.gapless.initial_seed() == 6
    assert torch.initial_seed() == 5
    torch.gapless.seed_all()
    torch.gapless.seed()


def test_fork_rng_leaves_no_trace():
    torch.manual_seed(1)
    expected = [draw(), draw()]
    torch.manual_seed(1)
    first = draw()
    with torch.random.fork_rng(device_type="gapless"):
        draw()
        torch.manual_seed(99)
        draw()
    assert [first, draw()] == expected


def test_all_states_at_once():
    states = torch.gapless.get_rng_state_all()
    assert len(states) == torch.gapless.device_count()
    expected = draw()
    torch.gapless.set_rng_state_all(states)
    assert draw() == expected


def test_numbers_do_not_depend_on_other_streams():
    streams = [torch.Stream("gapless") for _ in range(4)]

    def spread(wait: bool) -> list[list[float]]:
        torch.manual_seed(3)
        parts = []
        for index in range(40):
            with streams[index % 4]:
                parts.append(torch.randn(50, device="gapless"))
            if wait:
                torch.accelerator.synchronize()
        torch.accelerator.synchronize()
        return [part.tolist() for part in parts]

    assert spread(wait=False) == spread(wait=True)


def test_devices_draw_independently():
    count = torch.gapless.device_count()
    if count < 2:
        pytest.skip("one device; GAPLESS_NUM_DEVICES=2 gives two where the driver offers them")
    torch.manual_seed(3)
    expected = torch.rand(5, device="gapless:1").tolist()
    torch.manual_seed(3)
    torch.rand(5, device="gapless:0")
    assert torch.rand(5, device="gapless:1").tolist() == expected


def test_replays_draw_fresh_numbers_and_repeat_with_the_seed():
    graph = torch.accelerator.Graph()
    with torch.Stream("gapless"), graph:
        numbers = torch.rand(6, device="gapless")

    def replays() -> list[list[float]]:
        torch.manual_seed(8)
        drawn = []
        for _ in range(3):
            graph.replay()
            torch.accelerator.synchronize()
            drawn.append(numbers.tolist())
        return drawn

    first = replays()
    assert first[0] != first[1] != first[2]
    assert replays() == first


@pytest.mark.parametrize(
    "make",
    [
        lambda g: torch.randn(5, device="gapless", generator=g),
        lambda g: torch.randint(0, 99, (5,), device="gapless", generator=g),
        lambda g: torch.randperm(9, device="gapless", generator=g),
        lambda g: torch.bernoulli(torch.full((9,), 0.5, device="gapless"), generator=g),
        lambda g: torch.multinomial(torch.ones(9, device="gapless"), 4, generator=g),
        lambda g: torch.empty(5, device="gapless").normal_(generator=g),
        lambda g: torch.empty(5, device="gapless").exponential_(generator=g),
        lambda g: torch.normal(torch.zeros(5, device="gapless"), 1.0, generator=g),
        lambda g: torch.poisson(torch.ones(5, device="gapless"), generator=g),
    ],
)
def test_every_distribution_takes_a_generator_and_repeats(make):
    first = make(torch.Generator("gapless").manual_seed(4)).tolist()
    assert make(torch.Generator("gapless").manual_seed(4)).tolist() == first
    state = torch.gapless.get_rng_state()
    make(torch.Generator("gapless").manual_seed(4))
    assert torch.equal(torch.gapless.get_rng_state(), state)  # the default one is not touched


def test_a_generator_of_the_host_is_refused():
    with pytest.raises(RuntimeError, match=r"Expected|generator|device"):
        torch.rand(3, device="gapless", generator=torch.Generator())


def test_dropout_draws_from_the_devices_generator():
    operand = torch.randn(64, device="gapless")
    torch.manual_seed(2)
    expected = torch.dropout(operand, 0.25, True)
    host_state = torch.get_rng_state()
    torch.gapless.manual_seed(2)
    dropped, mask = torch.native_dropout(operand, 0.25, True)
    torch.testing.assert_close(dropped.cpu(), expected.cpu())
    assert torch.equal((dropped != 0).cpu(), mask.cpu())
    assert torch.equal(torch.get_rng_state(), host_state)
    kept, mask = torch.native_dropout(operand, 0.25, False)
    assert torch.equal(kept.cpu(), operand.cpu())
    assert mask.all().item()
    assert torch.native_dropout(operand, 1.0, True)[0].count_nonzero().item() == 0


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_draws_the_same_numbers_again(use_reentrant):
    x = torch.ones(1000, device="gapless", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(
        lambda t: torch.nn.functional.dropout(t * 2, 0.5), x, use_reentrant=use_reentrant
    )
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
