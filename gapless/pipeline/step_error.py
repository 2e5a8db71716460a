"""The error of one step of a pipeline, raised where its result would have been."""

from __future__ import annotations

from gapless.errors import GaplessError


class StepError(GaplessError):
    """A step gave no result. ``__cause__`` is the error itself, where there is one.

    Attributes:
        index: which input, from 0; in streaming, the number that ``submit`` returned.
        stage: ``input`` (the inputs' iterator), ``prepare``, ``submit`` (the step function, on
            the host) or ``device``.
        is_consequence: the step itself is not to blame: it was not run, or not to its end, since
            earlier work of its stream had failed.
    """

    def __init__(
        self, index: int, stage: str, cause: BaseException | None, is_consequence: bool = False
    ) -> None:
        self.index = index
        self.stage = stage
        self.is_consequence = is_consequence
        self.__cause__ = cause
        super().__init__(_text(index, stage, cause, is_consequence))

    def __reduce__(self) -> tuple[type[StepError], tuple[object, ...]]:
        return type(self), (self.index, self.stage, self.__cause__, self.is_consequence)


def _text(index: int, stage: str, cause: BaseException | None, is_consequence: bool) -> str:
    if is_consequence:
        told = "to somebody else" if cause is None else f"before: {_first_line(cause)}"
        return (
            f"input {index} was not computed, as earlier work on its stream had failed on the "
            f"device, which was told {told}; submit the input again"
        )
    where = {
        "input": "could not be taken from the inputs",
        "prepare": "failed while it was prepared on the host",
        "submit": "failed in the step function, on the host",
        "device": "failed on the device",
    }[stage]
    return f"input {index} {where}: {_first_line(cause)}"


def _first_line(error: BaseException | None) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
