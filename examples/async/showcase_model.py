"""The model of the showcases, the step that is made of it, and the check of its results."""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import typer

from gapless.errors import UsageError
from gapless.pipeline import AsyncExecutor, CapturedStep, Pipeline, WarmParent
from gapless.pipeline.device_choice import choose_device

VOCABULARY = 100
PROGRAM_US = 5180
CHECKED_HIDDEN, CHECKED_STEPS = 256, 16
# The check computes, however little time the device is said to take.
EXACT = {"GAPLESS_SIM_NUMERICS": "exact", "GAPLESS_SIM_WORK_US": "graph replay=1"}


def choose_driver(device: str, driver: str | None) -> bool:
    """Before the device is first used; says whether it is simulated, which is the default.

    ``sim`` takes the stated time for a step, whatever is in it. Computing two products with
    8192 x 8192 takes this machine longer than that, so the simulator only takes the time; copies to
    and fro are made all the same, and are part of the time.

    Raises:
        typer.BadParameter: there is no such device, or it has no driver to choose.
    """
    is_gapless = device.split(":")[0] == "gapless"
    if driver is not None and not is_gapless:
        raise typer.BadParameter(
            f"the device {device} has no driver to choose; leave --driver out, or use --device "
            "gapless",
            param_hint="--driver",
        )
    driver = driver or "sim"
    if is_gapless:
        os.environ["GAPLESS_DRIVER"] = driver
    if is_gapless and driver == "sim":
        os.environ.setdefault("GAPLESS_SIM_WORK_US", f"graph replay={PROGRAM_US}")
        os.environ.setdefault("GAPLESS_SIM_NUMERICS", "none")
        os.environ.setdefault("GAPLESS_SIM_COPY_LATENCY_US", "0")
    try:
        choose_device(device.replace("{rank}", "0"))
    except UsageError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error
    return is_gapless and driver == "sim"


def make_model(hidden: int, device: torch.device | str) -> torch.nn.Module:
    """The same weights each time, made on the device: 64 workers without numbers need no memory."""
    torch.manual_seed(0)
    with torch.device(device):
        model = torch.nn.Sequential(
            torch.nn.Embedding(VOCABULARY, hidden),
            torch.nn.Linear(hidden, hidden),
            torch.nn.Linear(hidden, hidden),
            torch.nn.Linear(hidden, VOCABULARY),
        )
    return model.requires_grad_(False)


def host_work(us: float, *_: Any) -> None:
    """Stand for what a program does per step: Python, for that much processor time."""
    until = time.thread_time_ns() + us * 1000
    while time.thread_time_ns() < until:
        pass


def forward(model: torch.nn.Module) -> Callable[..., Any]:
    """One token in, its scores out, together with the token that they belong to."""
    return lambda token: (token, model(token))


def decode(model: torch.nn.Module) -> tuple[Callable[..., Any], torch.Tensor]:
    """The next token is made of the last one on the device; the step's number goes to and fro."""
    last = torch.zeros(1, dtype=torch.int64, device=next(model.parameters()).device)

    def step(number: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        last.copy_(model(last).argmax(-1))
        return number, last

    return step, last


def load(rank: int, hidden: int, work_us: float, device: str, is_decoding: bool) -> CapturedStep:
    """The step of a worker: captured, with the host's work before each submission."""
    model = make_model(hidden, device)
    number, prepare = [torch.zeros(1, dtype=torch.int64)], partial(host_work, work_us)
    if is_decoding:
        step, last = decode(model)
        return CapturedStep(step, number, prepare=prepare, reset=last.zero_)
    return CapturedStep(forward(model), number, prepare=prepare)


def one_program(step: Callable[..., Any], device: torch.device) -> Callable[[Any], Any]:
    """The step as one submit, where the device has graphs."""
    if device.type == "cpu":
        return step
    number = torch.zeros(1, dtype=torch.int64, device=device)
    step(number)  # what is made at the first call must not be captured
    graph, stream = torch.accelerator.Graph(), torch.Stream(device)
    torch.accelerator.synchronize(device)
    with stream, graph:
        results = step(number)

    def program(value: torch.Tensor) -> Any:
        number.copy_(value)
        graph.replay()
        return results

    return program


def make_step(hidden: int, device: str, *, is_decoding: bool) -> Callable[[Any], Any]:
    """The step of a single process, for ``Pipeline``."""
    model = make_model(hidden, device)
    where = next(model.parameters()).device
    step, last = decode(model) if is_decoding else (forward(model), None)
    program = one_program(step, where)
    if last is not None:
        last.zero_()
    return program


def numbers(steps: int) -> list[torch.Tensor]:
    """The inputs: tokens, or the numbers of steps."""
    return [torch.tensor([step % VOCABULARY]) for step in range(steps)]


def require_answers(results: list[Any]) -> None:
    """That each result is the answer to the input in its place, as told by what went to and fro."""
    for wanted, (number, _) in zip(numbers(len(results)), results, strict=True):
        if not torch.equal(number, wanted):
            raise AssertionError(f"the answer to {wanted.item()} came for {number.item()}")


def same_bits(hidden: int, device: str, is_decoding: bool) -> str:
    """Both depths, from the same start, compared bit for bit; what was compared, or an error."""
    found = []
    for depth in (1, 2):
        step = make_step(hidden, device, is_decoding=is_decoding)
        with Pipeline(step, depth, device=device) as pipeline:
            found.append(list(pipeline.map(numbers(CHECKED_STEPS))))
    return _compared(found, hidden)


def check(hidden: int, device: str, is_simulated: bool, *, is_decoding: bool) -> str:
    """``same_bits``; where this process computes nothing, in another one that does."""
    if not is_simulated:
        return same_bits(hidden, device, is_decoding)
    with AsyncExecutor(1, _nothing, device="cpu", environment=EXACT) as executor:
        return str(executor.call(same_bits, CHECKED_HIDDEN, device, is_decoding)[0])


def check_workers(parent: WarmParent, world_size: int, device: str, *, is_decoding: bool) -> str:
    """The same in as many workers, all computing."""
    found = []
    step = partial(load, hidden=CHECKED_HIDDEN, work_us=0, device=device, is_decoding=is_decoding)
    for depth in (1, 2):
        with AsyncExecutor(
            world_size, step, depth, device=device, environment=EXACT, parent=parent
        ) as executor:
            steps = list(executor.map(numbers(CHECKED_STEPS)))
        found.append([each for results in steps for each in results])
    return _compared(found, CHECKED_HIDDEN) + f", in {world_size} workers"


def _nothing(rank: int) -> Callable[[Any], Any]:
    return lambda item: item


def _compared(found: list[list[Any]], hidden: int) -> str:
    sequential, buffered = found
    for one, other in zip(sequential, buffered, strict=True):
        if not all(torch.equal(a, b) for a, b in zip(one, other, strict=True)):
            raise AssertionError("sequential and double-buffered results differ")
    if not any(bool(each.any()) for result in sequential for each in result[1:]):
        raise AssertionError("all results are zeros: nothing was computed, so nothing compared")
    return f"{CHECKED_STEPS} steps of both modes, computed at {hidden} wide, are equal to the bit"
