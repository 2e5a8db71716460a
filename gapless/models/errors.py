"""What can be wrong with a model folder."""

from gapless.errors import GaplessError


class ModelError(GaplessError):
    """A model cannot be obtained or loaded; the message is one line with the remedy."""
