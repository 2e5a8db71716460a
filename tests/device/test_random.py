import torch


def test_seeds_repeat():
    torch.manual_seed(3)
    first = [torch.rand(5, device="gapless").tolist(), torch.randn(5, device="gapless").tolist()]
    torch.manual_seed(3)
    again = [torch.rand(5, device="gapless").tolist(), torch.randn(5, device="gapless").tolist()]
    assert first == again
    assert torch.rand(5, device="gapless").tolist() != first[0]


def test_numbers_do_not_depend_on_the_hosts_timing():
    torch.manual_seed(3)
    draws = [torch.rand(5, device="gapless") for _ in range(50)]  # all in flight
    at_once = [draw.tolist() for draw in draws]
    torch.manual_seed(3)
    one_by_one = [torch.rand(5, device="gapless").tolist() for _ in range(50)]
    assert at_once == one_by_one


def test_the_hosts_generator_is_not_touched():
    torch.manual_seed(3)
    expected = torch.rand(3).tolist()
    torch.manual_seed(3)
    torch.rand(1000, device="gapless")
    assert torch.rand(3).tolist() == expected


def test_state_can_be_saved_and_restored():
    torch.rand(3, device="gapless")
    state = torch.gapless.get_rng_state()
    expected = torch.rand(3, device="gapless").tolist()
    torch.gapless.set_rng_state(state)
    assert torch.rand(3, device="gapless").tolist() == expected


def test_a_generator_of_ones_own():
    def draw() -> list[int]:
        generator = torch.Generator("gapless").manual_seed(5)
        return torch.randint(0, 1000, (8,), generator=generator, device="gapless").tolist()

    assert draw() == draw()


def test_the_distribution_is_right():
    numbers = torch.rand(200_000, device="gapless")
    assert abs(numbers.mean().item() - 0.5) < 0.005
    assert abs(numbers.std().item() - 12**-0.5) < 0.005
