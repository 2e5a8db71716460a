"""Random numbers of the device: reproducible whatever the host's timing."""

import torch
from torch.types import Device

from gapless import _C
from gapless.device.memory import _index


class _DefaultGenerators:
    """One generator per device, made on first use so that importing starts nothing."""

    def __getitem__(self, index: int) -> torch.Generator:
        generator: torch.Generator = _C.default_generator(index)
        return generator

    def __len__(self) -> int:
        count: int = _C.device_count()
        return count


default_generators = _DefaultGenerators()


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    default_generators[_index()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator; ``torch.manual_seed`` calls this."""
    for index in range(len(default_generators)):
        default_generators[index].manual_seed(int(seed))


def seed() -> None:
    """Seed the current device's generator from the system's randomness."""
    default_generators[_index()].seed()


def seed_all() -> None:
    """Seed every device's generator with one number from the system's randomness."""
    manual_seed_all(torch.seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return default_generators[_index()].initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    """State of one device's generator: uint8 [16], seed and offset."""
    return default_generators[_index(device)].get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all devices' generators."""
    return [get_rng_state(index) for index in range(len(default_generators))]


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Set one device's generator; the state as :func:`get_rng_state` gave it."""
    default_generators[_index(device)].set_state(new_state)


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Set all devices' generators, in the order of their indices."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
