"""One program on the device and on the CPU, compared."""

from random import Random

import torch

from tests.random.generate import generate
from tests.random.instructions import Program
from tests.random.on_device import OnDevice
from tests.random.reference import Reference


class Differs(AssertionError):
    """The device saw something else than the reference."""


def program_of(seed: int) -> Program:
    """The program of a seed, for as many devices as there are: for more it is another one."""
    return program_from(Random(seed), seed)


def program_from(random: Random, seed: int) -> Program:
    """A program by these choices; ``seed`` is also where the device's random numbers start."""
    devices = torch.accelerator.device_count()
    return generate(random, devices, length=random.randint(5, 60), seed=seed)


def check(program: Program, forget: frozenset[type] = frozenset()) -> None:
    """Runs the program both ways.

    Raises:
        Differs: the results are not the same, bit for bit.
    """
    expected = Reference(program).run()
    seen = OnDevice(program, forget).run()
    for place, (ours, theirs) in enumerate(zip(seen, expected, strict=True)):
        if ours != theirs:
            raise Differs(
                f"read {place} of {len(expected)} differs: {ours[:64].hex(' ', 8)} ... instead of "
                f"{theirs[:64].hex(' ', 8)} ..."
            )
