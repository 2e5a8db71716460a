"""Errors injected on the device. Each has a number of its own in its text."""

from random import Random

import torch

FIRST_NUMBER = 1_000_000
TABLE_SIZE = 3


class WrongReport(AssertionError):
    """An injected error was not reported, not once, or where it should not have been."""


class ErrorInjector:
    """Makes work fail on random streams, and checks that the host hears of it exactly once."""

    def __init__(self, random: Random, streams: list[torch.Stream]) -> None:
        self.random = random
        self.streams = streams
        self.injected = 0
        self.reported = 0
        self.index = torch.zeros(1, dtype=torch.long, device="gapless")
        self.table = torch.zeros(TABLE_SIZE, device="gapless")
        self.graph = torch.accelerator.Graph()
        self.graph.capture_begin()
        self.inside = self.table[self.index]
        self.graph.capture_end()

    def inject(self) -> None:
        """One error, reported by a wait of a random kind.

        Raises:
            WrongReport: not exactly one report.
        """
        stream, other = self.random.sample(self.streams, 2)
        number = FIRST_NUMBER + self.injected
        with stream:
            result = self.fail(number)
            self.table * 2  # later work, which must not hang
            event = stream.record_event()
        self.injected += 1
        inherits = self.random.randrange(3) == 0
        if inherits:
            other.wait_event(event)
        with other:
            unrelated = torch.full((5,), 3.0, device="gapless") + 1
        if not inherits:
            with other:
                if unrelated.sum().item() != 20:
                    raise WrongReport(f"error {number} on {stream} disturbed {other}")
        waits = [torch.accelerator.synchronize]
        if not inherits:  # else the other stream has to tell as well
            waits += [stream.synchronize, event.synchronize, result.item, result.cpu]
        self.expect(number, stream, self.random.choice(waits))
        torch.accelerator.synchronize()  # nothing is left

    def fail(self, number: int) -> torch.Tensor:
        """Work on the current stream that fails, alone or in a replay."""
        if self.random.randrange(3):
            return self.table[torch.full((1,), number, device="gapless")]
        self.index.fill_(number)
        self.graph.replay()
        return self.inside

    def expect(self, number: int, stream: torch.Stream, wait: object) -> None:
        try:
            with stream:
                wait()  # type: ignore[operator]
        except torch.AcceleratorError as error:
            if str(error).count(f"index {number} is out of bounds") != 1:
                raise WrongReport(f"error {number} was reported as: {error}") from None
            self.reported += 1
        else:
            raise WrongReport(f"error {number} on {stream} was not reported")
