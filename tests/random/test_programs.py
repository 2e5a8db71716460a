"""A few hundred random programs; ``make random`` runs them by the thousand."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.random import instructions
from tests.random.__main__ import parse, run
from tests.random.check import Differs, check, program_from, program_of


# Hypothesis shrinks what fails; the same examples each time, so that a failure is the change's.
@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.randoms(use_true_random=False))
def test_any_program_computes_what_the_cpu_computes(random):
    check(program_from(random, seed=1))


def test_programs_by_seed():
    for seed in range(220):
        try:
            check(program_of(seed))
        except Exception as error:
            error.add_note(f"again: python -m tests.random --seed {seed}")
            raise


@pytest.mark.parametrize("kind", [instructions.Wait, instructions.SyncDevice])
def test_a_lost_ordering_is_noticed(kind):
    """The check can fail: the same programs with waits left out on the device."""
    noticed = 0
    for seed in range(3000):  # few programs need each wait; two are found in the first hundreds
        try:
            check(program_of(seed), forget=frozenset({kind}))
        except Differs:
            noticed += 1
        if noticed == 2:
            return
    pytest.fail(f"3000 programs without {kind.__name__} gave the right results")


def test_a_failing_seed_is_printed_with_the_command_that_repeats_it(capsys):
    failed = run(parse(["--programs", "40", "--forget", "Wait"]))
    assert failed > 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "again: " in line]
    assert len(lines) == failed
    assert all("python -m tests.random --seed " in line for line in lines)
    assert all(line.endswith(" --forget Wait") for line in lines)
    seed = lines[0].split("--seed ")[1].split()[0]
    assert run(parse(["--seed", seed])) == 0
    assert "Wait(event=" in capsys.readouterr().out
