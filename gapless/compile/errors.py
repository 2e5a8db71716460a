"""What can go wrong while a program is compiled or looked up."""

from gapless.errors import GaplessError


class CompileError(GaplessError):
    """A program cannot be made; the message is one line with the remedy."""


class ProgramMissing(CompileError):
    """``GAPLESS_COMPILE=never`` and no artifact holds a program for these shapes."""
